# Every target installs what it needs into .venv first, once; `make PYTHON=python3.12` names another Python.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Not those that others are made of, nor those that train for hours.
NOT_BENCHMARKS := benchmarks/_%.py $(addprefix benchmarks/,netns.py relay.py tune.py accuracy.py)
BENCHMARKS := $(filter-out $(NOT_BENCHMARKS),$(wildcard benchmarks/*.py))
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# Tests that start processes of their own have the machine to themselves; the others share its cores.
SHARED := -n auto --maxprocesses 8 --dist worksteal

.PHONY: help compare test unit check format docs figures bench clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

compare: $(READY) ## train by six methods on a virtual office; ARGS="--cluster two-sites" changes it
	$(BIN)/thinwire compare $(ARGS)

test: $(READY) ## everything that must pass: all tests, doctests, the code in README and docs
	$(PYTEST) $(SHARED) -r fEs -m "not distributed" --doctest-modules tests src
	$(PYTEST) -r fEs -m distributed tests

unit: $(READY) ## the fast tests and the doctests
	$(PYTEST) $(SHARED) -m "not slow and not distributed and not device" --doctest-modules tests src

check: $(READY) ## format, lint, types, layers, fast tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(MAKE) --no-print-directory unit

format: $(READY) ## put the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY) ## write the generated pages again
	$(BIN)/python docs/generate.py

figures: $(READY) ## train the default comparison and put its figures and picture into README
	$(BIN)/python docs/figures.py

bench: $(READY) ## measure: virtual world, real wire and the rest, each beside what it is compared with
	@missed=0; for file in $(BENCHMARKS); do echo "== $$file"; $(BIN)/python $$file || missed=1; done; exit $$missed

clean: ## remove what the other targets made, run folders excepted
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip installs the pins, then the package itself, editable and with nothing fetched for its build.
$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "thinwire needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -r requirements.txt
	$(BIN)/python -m pip install --no-deps --no-build-isolation -e .
	@touch $(READY)
