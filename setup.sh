#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes everything a `make` verb needs and leaves .venv/bin/python able to `import flash_transducer`:
# system packages, .venv, the build directory, the package under BUILD/site and a .pth file that names it.
# Every step looks first and does nothing when there is nothing to do; a second run takes seconds.
#
#   setup.sh [--extras test,lint] [--torch] [--build build] [--only-venv | --targets NAME] [-- MESON_OPTION ...]
#
# PYTHON chooses the interpreter (3.10 or newer; python3 by default), NINJA_JOBS the number of compilers
# at a time; TX_WERROR=true makes warnings errors. --torch adds PyTorch for the tests of flash_transducer.torch,
# unless .venv has one or TORCH is 0: without it those tests are counted as skipped. --targets builds one part:
# `package` is what Python imports, without the C++ tests.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$root"

extras=test build=build only_venv= with_torch= targets=
while [ $# -gt 0 ]; do
  case $1 in
    --extras) extras=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    --only-venv) only_venv=1; shift ;;
    --targets) targets=$2; shift 2 ;;
    --torch) with_torch=1; shift ;;
    --) shift; break ;;
    *) echo "setup.sh: unknown argument $1" >&2; exit 2 ;;
  esac
done

python=${PYTHON:-python3}
venv=$root/.venv
say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$@" >&2; exit 1; }

# Two verbs at once (in two terminals) take turns.
if command -v flock >/dev/null; then
  exec 9>"$root/.venv.lock"
  flock 9
fi

# --- system packages -------------------------------------------------------------------------------

has_header() { echo "#include <$1>" | ${CXX:-c++} -std=c++20 -E -x c++ - >/dev/null 2>&1; }
python_can() { "$python" -c "$1" >/dev/null 2>&1; }
python_headers='import os, sysconfig; assert os.path.exists(sysconfig.get_path("include") + "/Python.h")'

# python3, or python3.12 if that is not the distribution's default: the prefix of its Debian packages.
python_package() {
  [ "$(command -v "$python")" -ef /usr/bin/python3 ] || [ ! "$(command -v "$python")" -ef "/usr/bin/$(basename "$python")" ] &&
    echo python3 || basename "$python"
}

# One line per thing: the Debian package, or nothing if it is there.
missing_packages() {
  command -v "$python" >/dev/null || echo python3
  command -v "${CXX:-c++}" >/dev/null || echo g++
  command -v pkg-config >/dev/null || echo pkg-config
  command -v cmake >/dev/null || echo cmake
  has_header gtest/gtest.h || echo libgtest-dev
  has_header rapidcheck.h || echo librapidcheck-dev
  has_header eigen3/Eigen/Core || echo libeigen3-dev
  python_can 'import ensurepip, venv' || [ -x "$venv/bin/python" ] || echo "$(python_package)-venv"
  python_can "$python_headers" || echo "$(python_package)-dev"
}

# Optional: without RapidCheck the property tests are counted as skipped, without Eigen the cpu backend is left out.
required() { grep -vE '^lib(rapidcheck|eigen3)-dev$' || true; }

name_packages() {
  fail "these system packages are missing and cannot be installed from here: $(echo $1)" \
    "  apt:   apt-get install g++ pkg-config cmake libgtest-dev librapidcheck-dev libeigen3-dev python3-venv python3-dev" \
    "  dnf:   dnf install gcc-c++ pkgconf-pkg-config cmake gtest-devel rapidcheck-devel eigen3-devel python3-devel" \
    "  brew:  brew install pkgconf cmake googletest rapidcheck eigen libomp python" \
    "  conda: conda install -c conda-forge cxx-compiler pkg-config cmake gtest rapidcheck eigen python"
}

install_packages() {
  local missing=$1 as_root= available= package
  [ "$(id -u)" = 0 ] || as_root="sudo -n"
  if ! command -v apt-get >/dev/null || ! $as_root true 2>/dev/null; then
    [ -z "$(required <<<"$missing")" ] && return
    name_packages "$(required <<<"$missing")"
  fi
  known() { apt-cache show "$1" >/dev/null 2>&1; }
  for package in $missing; do
    known "$package" || { say "apt-get update"; $as_root apt-get update -qq || true; break; }
  done
  for package in $missing; do
    known "$package" && available="$available $package"
  done
  [ -n "$available" ] || return 0
  say "apt-get install$available"
  apt_install() {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $available </dev/null
  }
  # Package lists may be older than the archive: refresh them once.
  apt_install >/dev/null 2>&1 || { $as_root apt-get update -qq && apt_install >/dev/null; } || true
}

missing=$(missing_packages)
if [ -n "$missing" ] && [ "$missing" != "$(cat .venv/.packages_not_to_be_had 2>/dev/null)" ]; then
  install_packages "$missing"
  missing=$(missing_packages)
  [ -z "$(required <<<"$missing")" ] || name_packages "$(required <<<"$missing")"
fi
python_can 'import sys; assert sys.version_info >= (3, 10)' ||
  fail "$python is $("$python" --version 2>&1), but flash-transducer needs Python 3.10 or newer." \
    "  Name another one: make PYTHON=python3.12 ..."

# --- .venv -----------------------------------------------------------------------------------------

# The interpreter and the folder: if either changes, .venv and the build directories are made anew.
key="$root $("$python" -c 'import sys; print(sys.version)' | tr '\n' ' ')"
if [ ! -x "$venv/bin/python" ] || [ "$(cat "$venv/.key" 2>/dev/null)" != "$key" ]; then
  say "making .venv with $("$python" --version)"
  rm -rf "$venv" build build-sanitize build-threads build-cuda build-wheel
  "$python" -m venv "$venv"
  echo "$key" >"$venv/.key"
fi
echo "$missing" >"$venv/.packages_not_to_be_had"

# What pyproject.toml asks for: the build system, the run-time dependencies and the chosen extras.
requirements() {
  "$venv/bin/python" - "$1" <<'PYTHON'
import re
import sys

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

with open("pyproject.toml", "rb") as file:
    declared = tomllib.load(file)
project = declared["project"]
wanted = [*declared["build-system"]["requires"], *project["dependencies"]]
extras = sys.argv[1].split(",")
for extra in extras:  # grows while an extra names others of ours
    for requirement in project["optional-dependencies"][extra]:
        own = re.fullmatch(project["name"] + r"\[(.*)\]", requirement)
        if own:
            extras.extend(own.group(1).split(","))
        else:
            wanted.append(requirement)
print("\n".join(wanted))
PYTHON
}

has_torch() { "$venv/bin/python" -c 'from importlib.util import find_spec; assert find_spec("torch")' 2>/dev/null; }
if [ -n "$with_torch" ] && [ "${TORCH:-}" != 0 ] && ! has_torch; then
  say "adding PyTorch (TORCH=0 leaves it out)"
  extras=$extras,test-torch
fi

for set_name in ${extras//,/ }; do
  stamp=$venv/.requirements_$set_name
  wanted=$(requirements "$set_name")
  if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    say "installing Python packages ($set_name)"
    xargs "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-input <<<"$wanted"
    echo "$wanted" >"$stamp"
  fi
done

# The programs without an installed wheel; through sh, because a shebang cannot hold a space.
write_program() {
  cat >"$venv/bin/$1" <<SCRIPT
#!/bin/sh
'''exec' "\$(dirname "\$(readlink -f "\$0")")/python" "\$0" "\$@"
'''
import sys

from flash_transducer.$2 import main

sys.exit(main())
SCRIPT
  chmod +x "$venv/bin/$1"
}
write_program flash-transducer cli
write_program flash-transducer-run run
[ -z "$only_venv" ] || exit 0

# --- the build directory ---------------------------------------------------------------------------

export PATH="$venv/bin:$PATH"
# site is absolute and inside the build directory, so installing touches nothing else.
site=$root/$build/site
options=("-Dpython.purelibdir=$site" "-Dpython.platlibdir=$site" "-Dwerror=${TX_WERROR:-false}" "$@")
# tests/reference/variants is the one folder that Meson lists by itself: a new file there is seen here.
configured="${options[*]} $(echo tests/reference/variants/*)"
if [ ! -f "$build/build.ninja" ] || [ "$(cat "$build/.options" 2>/dev/null)" != "$configured" ]; then
  say "configuring $build"
  again=
  [ -f "$build/build.ninja" ] && again=--reconfigure
  meson setup $again "$build" "${options[@]}"
  echo "$configured" >"$build/.options"
fi
# The folder of variant tests is its own list of sources.
[ ! tests/reference/variants -nt "$build/build.ninja" ] || meson setup --reconfigure "$build" >/dev/null
ninja -C "$build" ${NINJA_JOBS:+-j "$NINJA_JOBS"} $targets
meson install -C "$build" --no-rebuild --only-changed --quiet --tags runtime,python-runtime

if [ "$build" = build ]; then
  packages=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "$site" >"$packages/flash_transducer.pth"
fi
