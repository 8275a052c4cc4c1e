# `make` alone lists what can be done. Environments are made on demand and reused while their locks are unchanged.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The Python that the environments are made with: the first of these that is 3.11 or newer. Override: make PYTHON=...
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python3.14 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$p; break; }; done)
ROOMS := $(wildcard schemas producers processors learner migrations hindstream benchmarks)

# Processes that run the tests, each with a broker and a Postgres of its own: tests wait more than they compute.
# tests/scheduling.py says which process runs what.
WORKERS ?= 3

.PHONY: help demo test lint bench env lock clean distclean .venv .venv-vllm

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

demo: .venv .venv-vllm  ## watch a small model learn from conversations, start to end (about 10 minutes)
	.venv/bin/hindstream demo

test: .venv .venv-vllm  ## run the tests on a real broker, Postgres and model server (ARGS="tests/learner -k clip" for some)
	.venv/bin/python -m pytest -n $(WORKERS) $(ARGS)

lint: .venv  ## ruff, formatting, strict mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy $(ROOMS)

bench: .venv .venv-vllm  ## run the benchmarks, or one: make bench BENCH=NAME
	.venv/bin/python -m benchmarks $(BENCH)

env: .venv .venv-vllm  ## make both environments and stop there

lock: .venv  ## resolve the lock files anew from pyproject.toml and locks/*.in
	tools/lock.sh

clean:  ## remove build output and tool caches (environments and .hindstream data stay)
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean  ## clean, and remove both environments too
	rm -rf .venv .venv-vllm

.venv .venv-vllm:
	@command -v '$(PYTHON)' >/dev/null || { echo 'No Python 3.11 or newer found: install one, or make PYTHON=/path/to/python3'; exit 2; }
	@$(PYTHON) tools/make_env.py $(if $(filter .venv,$@),main,main vllm)
