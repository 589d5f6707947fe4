# SPDX-License-Identifier: Apache-2.0
# Verbs for people. Each one sets up what it needs; `make PYTHON=python3.12 ...` chooses the interpreter.
SHELL := bash
PYTHON ?= python3
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help setup demo test bench lint format sanitize threads gpu-compile gpu-build gpu-test gpu-bench clean

help:  ## list the verbs
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 16

setup:  ## build, and make .venv/bin/python able to import flash_transducer
	@./setup.sh

demo:  ## costs, gradients and lattice pictures of four variants on real lengths
	@./setup.sh --targets package
	@.venv/bin/flash-transducer demo

test:  ## every test, and one line with the true sum; TX_CASES=3000 draws more random cases; TORCH=0: no PyTorch
	@./setup.sh --torch
	@.venv/bin/python tests/support/count.py --build build

bench: setup  ## time the cpu backend: every shape, as a table and as build/bench.json
	@build/tests/bench/cpu_bench --shapes all --json build/bench.json

lint:  ## clang-format, clang-tidy, ruff, mypy, meson format, at pinned versions
	@./setup.sh --extras test,lint
	@.venv/bin/python tests/support/lint.py

format:  ## rewrite the sources as `make lint` wants them
	@./setup.sh --only-venv --extras test,lint
	@.venv/bin/python tests/support/lint.py --fix

sanitize:  ## the tests under the address and undefined-behaviour sanitizers
	@./setup.sh --build build-sanitize -- -Db_sanitize=address,undefined -Db_lundef=false
	@.venv/bin/python tests/support/count.py --build build-sanitize --suite reference --suite cpu --suite python

threads:  ## the cpu backend's tests under the thread sanitizer (Clang)
	@tests/support/sanitize_threads.sh

# Hardly optimised: six times faster to compile, and nothing here is timed.
gpu-compile:  ## compile and link the cuda backend with nvcc; its tests are skipped where there is no GPU
	@if command -v nvcc >/dev/null; then \
	  ./setup.sh --build build-cuda --targets cuda -- -Dcuda=enabled -Dcpu=disabled \
	    '-Dcuda_args=-Xcicc=-O1 -Xptxas=-O0' && \
	  .venv/bin/python tests/support/count.py --build build-cuda --suite cuda; \
	else \
	  echo "skipped 1: no nvcc"; echo "0 passed, 0 failed, 1 skipped" >>"$${TX_TOTALS:-/dev/null}"; \
	fi

# The verbs for a machine with a GPU install nothing: nvcc, Meson 1.5, Ninja, pybind11 and GoogleTest are there.
gpu-build:  ## build the cuda backend into build-gpu, for this machine's GPU; installs nothing
	@test -f build-gpu/build.ninja || meson setup build-gpu -Dcuda=enabled $(GPU_OPTIONS) \
	  -Dpython.purelibdir=$(CURDIR)/build-gpu/site -Dpython.platlibdir=$(CURDIR)/build-gpu/site
	@ninja -C build-gpu
	@meson install -C build-gpu --no-rebuild --quiet --tags runtime,python-runtime

gpu-test: export TX_REQUIRE_CUDA = 1
gpu-test: gpu-build  ## every test of the cuda backend on this machine's GPU, the small ones under compute-sanitizer
	@meson test -C build-gpu --suite cuda --print-errorlogs
	@for tool in memcheck racecheck initcheck; do \
	  compute-sanitizer --tool $$tool --error-exitcode 1 build-gpu/tests/cuda_test \
	    --gtest_filter='CudaSizes.Labels*:CudaSizes.Columns*:CudaDevice.Lengths*' || exit; \
	done

gpu-bench: gpu-build  ## time the cuda backend: every shape, as a table and as build-gpu/bench.json
	@build-gpu/tests/bench/cuda_bench --json build-gpu/bench.json

clean:  ## remove what the build made; .venv stays
	rm -rf build build-sanitize build-threads build-wheel build-cuda build-gpu
