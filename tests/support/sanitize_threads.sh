#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The CPU layer's tests under the thread sanitizer: with Clang, its OpenMP and Archer, which tells the sanitizer
# what OpenMP's barriers order (GCC's own OpenMP is opaque to it and gives false reports). Counted as one skipped
# test where those are missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

clang=$(compgen -c clang++ | grep -xE 'clang\+\+(-[0-9]+)?' | sort -V | tail -1 || true)
if [ -z "$clang" ] && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  apt-get install -y -qq --no-install-recommends clang >/dev/null 2>&1 || true
  clang=$(compgen -c clang++ | grep -xE 'clang\+\+(-[0-9]+)?' | sort -V | tail -1 || true)
fi
major=$([ -z "$clang" ] || "$clang" -dumpversion | cut -d. -f1)
archer() { echo "$(dirname "$(dirname "$("$clang" -print-resource-dir)")")/libarcher.so"; }  # beside the resources
complete() {
  [ -n "$clang" ] && echo 'int main() {}' | "$clang" -fopenmp -fsanitize=thread -x c++ - -o /dev/null 2>/dev/null &&
    [ -e "$(archer)" ]
}
if ! complete && [ -n "$clang" ] && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  for package in "libomp-$major-dev" "libclang-rt-$major-dev"; do
    apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1 || true
  done
fi
if ! complete; then
  echo "the thread sanitizer needs Clang with libomp and its run-time library: apt install clang libomp-dev"
  echo "0 passed, 0 failed, 1 skipped" | tee -a "${TX_TOTALS:-/dev/null}"
  exit 0
fi

./setup.sh --only-venv
export PATH=$PWD/.venv/bin:$PATH
options=(-Db_sanitize=thread -Db_lundef=false -Dpython=disabled "-Dwerror=${TX_WERROR:-false}")
[ -f build-threads/build.ninja ] || CXX=$clang meson setup build-threads "${options[@]}"
ninja -C build-threads tests/cpu_test tests/cpu_kernels_test tests/cpu_property_test

# Without the largest shapes, which take minutes and add no kind of access.
export OMP_TOOL_LIBRARIES=$(archer) TSAN_OPTIONS=ignore_noninstrumented_modules=1
export OMP_NUM_THREADS=4 GTEST_FILTER='-*Sizes*' TX_CASES=${TX_CASES:-50}
.venv/bin/python tests/support/count.py --build build-threads --suite cpu
