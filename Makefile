# agentq: `make` lists what there is. Everything runs from .venv/, which `make setup` makes.

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-ledger chaos mutants interop test-compose check bench up

# The first Python >= 3.11 that is found; `make PYTHON=/path/to/python …` chooses another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# What decides the content of .venv/. A stamp and not .venv/bin/python: where ensurepip is missing,
# `python -m venv` leaves a half-made folder that has a python and nothing else.
KEY = import hashlib, os, sys, tomllib; \
	parts = tomllib.load(open("pyproject.toml", "rb")); \
	kept = [parts[k] for k in ("build-system", "project", "dependency-groups")]; \
	print(hashlib.sha256(repr((kept, sys.version, os.getcwd())).encode()).hexdigest())
STAMP := .venv/.agentq-stamp

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv/ with agentq and its tools (again when pyproject.toml or Python changes)
	@set -eu; \
	if [ -z "$(PYTHON)" ]; then \
	  echo "agentq needs Python 3.11 or newer and found none; install it (Debian 12: apt-get install python3 python3-venv)" >&2; exit 1; fi; \
	key=$$($(PYTHON) -c '$(KEY)'); \
	if [ "$$(cat $(STAMP) 2>/dev/null)" = "$$key" ]; then exit 0; fi; \
	if ! $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null; then \
	  echo "$(PYTHON) cannot make virtual environments (no ensurepip). On Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; fi; \
	echo "setting up .venv with $$($(PYTHON) -V) (about 20 seconds)"; \
	$(PYTHON) -m venv --clear .venv; \
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'; \
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --group dev -e '.[flower,speedups,mcp]'; \
	echo "$$key" > $(STAMP)

demo: setup ## Run the twenty demo tasks through real workers; no key, no Redis needed
	@.venv/bin/agentq demo

test: setup ## Run every test (ARGS='-k name' for some)
	@.venv/bin/python -m pytest -n 3 --dist loadgroup $(ARGS)

test-ledger: setup ## The tests of the ledger, its state machine with many more examples (under 10 minutes)
	@.venv/bin/python -m tests.support.ledger_report

chaos: setup ## Kill our own agents' workers at every crash point, with every fault (under 10 minutes)
	@.venv/bin/python -m tests.chaos $(ARGS)

mutants: setup ## Plant bugs and show that the tests notice each (ARGS=fence for some)
	@.venv/bin/python -m tests.mutants.run $(ARGS)

interop: setup ## Our adapters against a LiteLLM proxy, a server of others (installs it into .interop/)
	@.venv/bin/python -m tests.interop

test-compose: setup ## docker-compose.yml on a real engine; without one, root on Debian 12 starts its own (4 to 8 minutes)
	@.venv/bin/python -m tests.compose

check: setup ## Formatting, lint, types and import layers
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports

bench: setup ## Measure the engine
	@.venv/bin/python benchmarks/engine.py

up: setup ## Redis, worker and the demo's agents on this machine, until Ctrl-C
	@.venv/bin/agentq up -A agentq.demo.agents:app
