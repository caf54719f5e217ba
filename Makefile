# Everything a developer types. `make` alone lists the targets.

VENV    := .venv
VLLM    := .venv-vllm
BIN     := $(VENV)/bin
PYTHON  ?= python3
# Without an NVIDIA GPU: the release that has a small CPU build. TORCH=... takes any other.
TORCH   ?= torch==2.13.0
WORKERS ?= 2
HOST    ?= 127.0.0.1
PORT    ?= 4200
RUNS    ?= ./runs

PIP     := $(BIN)/python -m pip install --disable-pip-version-check -qq
MARKS   := -m "not vllm$(if $(LONG),, and not long$(if $(SLOW),, and not slow))"
PREFECT := PREFECT_HOME="$(CURDIR)/.prefect" PREFECT_SERVER_ANALYTICS_ENABLED=false DO_NOT_TRACK=1

.DEFAULT_GOAL := help
.PHONY: help install quickstart test vllm test-vllm test-openenv chaos check format bench spec ui clean

help: ## This table
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## A virtual environment in .venv with agrpo and the developer's tools

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "agrpo needs Python 3.11 or newer, %s is %d.%d; try make PYTHON=python3.12 install" % (sys.executable, v[0], v[1]))'
	@echo "[1/3] virtual environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if command -v nvidia-smi >/dev/null 2>&1; then \
	   echo "[2/3] PyTorch for the GPU of this machine"; $(PIP) torch; \
	 else \
	   echo "[2/3] PyTorch for the CPU"; \
	   $(PIP) "$(TORCH)" || { echo "$(TORCH) cannot be had here: taking the newest"; $(PIP) torch; }; \
	 fi
	@echo "[3/3] agrpo, its dependencies and the developer's tools: some minutes the first time"
	@$(PIP) -e '.[dev]'
	@touch $@
	@echo "ready: $(BIN)/agrpo"

quickstart: install ## Train a tiny model from scratch on this machine, and look at its run
	@$(PREFECT) $(BIN)/agrpo quickstart --dir "$(RUNS)" $(ARGS)

test: install ## The tests that fit a laptop; SLOW=1 adds the slow ones, LONG=1 those of minutes too, ARGS="-k words" picks some
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(MARKS) --durations 10 $(ARGS)

vllm: $(VLLM)/.installed ## vLLM in an environment of its own, .venv-vllm: for the GPU of this machine, else for its CPU

$(VLLM)/.installed: deployments/vllm/install.py
	@$(PYTHON) $< $(VLLM)
	@touch $@

test-vllm: install ## The tests that need a real vLLM server, which they share; SLOW=1 adds those of minutes, ARGS="-k words" picks some
	@if $(MAKE) --no-print-directory vllm; then \
	   $(BIN)/python -m pytest tests/vllm -m "vllm$(if $(SLOW),, and not slow)" --durations 10 $(ARGS); \
	 else \
	   echo "the tests of a real vLLM server are not run: it cannot be installed here, for the reason above"; \
	 fi

test-openenv: install ## The tests of OpenEnv's adapter, on servers of its own; installs agrpo[openenv] first, some 40 packages
	@$(PIP) -e '.[openenv]'
	@$(BIN)/python -m pytest tests/openenv --durations 10 $(ARGS)

chaos: install ## Kill runs a hundred times and hold them to their promises, in some 20 minutes; KILLS=20 SEEDS="7 8"
	@KILLS="$(or $(KILLS),100)" SEEDS="$(or $(SEEDS),1 2)" $(BIN)/python -m pytest -q tests/chaos/many_kills.py $(ARGS)

check: install ## Style, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright

format: install ## Format, and mend what ruff can mend
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: install ## Measure, in some minutes; BENCH=memory picks one of benchmarks/, ARGS="--help" asks it
	@set -e; for script in $(or $(BENCH:%=benchmarks/%.py),$(filter-out benchmarks/against_trl.py,$(sort $(wildcard benchmarks/*.py)))); do \
	   echo; echo "== $$script"; $(BIN)/python "$$script" $(ARGS); \
	 done

spec: install ## Which rows of docs/spec a test claims, and which none does
	@$(BIN)/python tests/spec_coverage.py

ui: install ## Prefect's pages at http://127.0.0.1:4200, on the history kept in .prefect
	@$(PREFECT) PREFECT_UI_API_URL="http://$(HOST):$(PORT)/api" $(BIN)/prefect server start --host $(HOST) --port $(PORT)

clean: ## Remove the environments and every cache; runs/ and .prefect/ stay
	rm -rf $(VENV) $(VLLM) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
