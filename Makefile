# Everything runs in .venv, which `make setup` builds from the locked requirements. Nothing else is needed
# than Python 3.11 and the package registries.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.kvply-ready
# What fails fast comes first.
QUICK := tests/unit tests/property tests/test_boundaries.py tests/dist

.PHONY: help setup demo test test-fast lint format bench clean

help:
	@echo "make demo    serve a small MLA model with KVPP off, then on, and compare (about 3 minutes)"
	@echo "make test    all tests, end-to-end tests on real vLLM included (about 25 minutes on 2 cores)"
	@echo "make test-fast  unit, property and dist tests (under 3 minutes)"
	@echo "make lint    ruff and mypy --strict"
	@echo "make bench   the measurements of benchmarks/README.md"

setup: $(STAMP)

$(STAMP): requirements/cpu.txt requirements/dev.txt pyproject.toml tools/setup_venv.sh
	PYTHON="$(PYTHON)" bash tools/setup_venv.sh $(VENV)
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/kvply demo

test: $(STAMP)
	$(BIN)/python -m pytest $(QUICK) tests/vllm tests/e2e

test-fast: $(STAMP)
	$(BIN)/python -m pytest $(QUICK)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python benchmarks/run_all.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info
