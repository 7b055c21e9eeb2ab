# Capataz: everything from a fresh clone. Each target makes .venv when it is missing or out of date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.capataz-ready
BENCH_STAMP := $(VENV)/.capataz-bench-ready

.PHONY: help setup demo test test-all lint types bench docs lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with Capataz and the development tools

$(STAMP): requirements/bootstrap.txt requirements/dev.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	@$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements/dev.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q -x 'demo/sample' src
	@touch $@

$(BENCH_STAMP): $(STAMP) requirements/bench.txt
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements/bench.txt
	@touch $@

demo: setup ## run the main job on the bundled sample with a scripted model
	@$(BIN)/capataz demo --yes

test: setup ## the tests (under ten minutes)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not sweep and not registry"

test-all: setup ## the tests and the long sweeps
	$(BIN)/python -m pytest

lint: setup ## ruff, import contracts, types
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/mypy

docs: setup ## generate the reference pages and check that the committed ones are current
	$(BIN)/python -m docs.generate --check

bench: $(BENCH_STAMP) ## measure ratios; writes bench/results/*.json and a table
	$(BIN)/python -m bench

lock: setup ## renew the pinned requirements
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url requirements/bootstrap.in -o requirements/bootstrap.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url pyproject.toml --extra openai --extra anthropic --extra google --extra langgraph --group dev -o requirements/dev.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url pyproject.toml --extra openai --extra anthropic --extra google --extra langgraph --group dev --group bench -o requirements/bench.txt

clean: ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis bench/results
