# SPDX-License-Identifier: Apache-2.0
# Verbs for people. Each one sets up what it needs; `make PYTHON=python3.12 ...` chooses the interpreter.
SHELL := bash
PYTHON ?= python3
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help setup demo test bench lint format sanitize threads clean

help:  ## list the verbs
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/^([a-z]+):.*## /make \1\t/' | expand -t 16

setup:  ## build, and make .venv/bin/python able to import flash_transducer
	@./setup.sh

demo:  ## costs, gradients and lattice pictures of four variants on real lengths
	@./setup.sh --only-package
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

clean:  ## remove what the build made; .venv stays
	rm -rf build build-sanitize build-threads build-wheel
