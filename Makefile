# One file, five words: setup, run, test, test-all, check.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: setup run test test-all check format lint types imports bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py $(wildcard src/edgekit/engines/native/kernels/csrc/*.[ch])
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@

run: setup
	@$(BIN)/edgekit recommend || test $$? -eq 3 # "nothing fits" is an answer too

# Two workers more than cores, because many tests wait for a browser, a server or a child.
WORKERS = $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 2 )))
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# At most two cases of each table, and a sample of each wide sweep; a file that is run by itself runs all its cases.
test: setup
	@$(PYTEST) --cases 2

# Every case of every table and sweep. EDGEKIT_RANDOM=1 tries other random examples each time.
test-all: setup
	@EDGEKIT_LONG=1 $(PYTEST)

check: format lint types imports test

# Deno formats and lints the page (deno.json); it needs no network.
DENO = DENO_NO_UPDATE_CHECK=1 $(BIN)/deno

format: setup
	@$(BIN)/ruff format --check .
	@$(DENO) fmt --quiet --check

lint: setup
	@$(BIN)/ruff check .
	@$(DENO) lint --quiet

types: setup
	@$(BIN)/mypy

imports: setup
	@$(BIN)/lint-imports --no-cache

bench: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group bench
	@$(BIN)/python benchmarks/inspect_speed.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
