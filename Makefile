# Two commands do all the set-up: `make demo` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Unit tests force thousands of small files to the disk; in memory, where 500 MB are free, that takes no time.
MEMORY := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 500000 {print "/dev/shm"}')

# Without bytecode every start compiles the source again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test check lint unit integration bench bench-quick fuzz simulate soak docs lock clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(READY): requirements/dev.txt pyproject.toml src/moldau/cli/registry.py
	@[ -n "$(PYTHON)" ] || { echo "moldau: Python 3.11 or newer is missing; install it, or run: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "moldau: Python's venv module is missing; on Debian: apt-get install python3-venv"; exit 1; }
	@echo "setting up $(VENV) from requirements/dev.txt (once, a minute or two)"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/moldau spark-archive make || true
	@touch $@

demo: $(READY) ## Website activity: pipelines count page views per window, exactly once, as a live table
	@$(BIN)/python examples/demo.py

test: check integration ## All tests: check, then real clients against a real broker

# Property tests try fewer examples in `make check` than in `make test`.
check: export MOLDAU_QUICK_EXAMPLES ?= $(if $(filter test,$(MAKECMDGOALS)),,1)
check: $(READY) ## Lint, types, layers, unit tests (under 90 s)
	@$(MAKE) --no-print-directory -j2 lint unit

lint: $(READY)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

unit: $(READY)
	@folder=$$(mktemp -d $(or $(MEMORY),/tmp)/moldau-unit-XXXXXX) && TMPDIR=$$folder $(BIN)/python -m pytest -q -n auto tests/unit && rm -rf $$folder

integration: $(READY)
	@$(BIN)/python -m simulation --seeds 200
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup tests/integration --ignore tests/integration/spark --ignore tests/integration/pipelines --ignore tests/integration/connect
	@$(BIN)/python -m pytest -q -n 2 --dist loadscope tests/integration/spark tests/integration/pipelines tests/integration/connect

bench: $(READY) ## Benchmarks against Apache Kafka (one and three brokers) and Spark's connector (about an hour; needs Java and Maven)
	@$(BIN)/python -m bench

bench-quick: $(READY) ## A smaller benchmark: one round
	@$(BIN)/python -m bench --quick

fuzz: $(READY) ## Mutated frames against a live broker (SECONDS=60), then the largest request of every API
	@$(BIN)/python -m fuzz --seconds $(or $(SECONDS),60)

simulate: $(READY) ## Clusters of real brokers on virtual time, under faults, each from a seed (SEEDS=1000; about five minutes on two cores)
	@$(BIN)/python -m simulation --seeds $(or $(SEEDS),1000)

soak: $(READY) ## The simulation, then hard kills under load: rounds (ROUNDS=20), copies and a queue (RECORDS=20000), a pipeline at a steady rate (SECONDS=600), all examples (EXAMPLE_ROUNDS=3), every fault of a cluster, alone and mixed (CLUSTER_SECONDS=300), hosts that vanish
	@$(BIN)/python -m simulation --seeds $(or $(SEEDS),1000)
	@HISTORIES=1000 $(BIN)/python -m pytest -q -n auto tests/unit/log/cleaning/test_clean_model.py
	@$(BIN)/python -m soak --rounds $(or $(ROUNDS),20)
	@$(BIN)/python -m soak --exactly-once $(or $(RECORDS),20000)
	@$(BIN)/python -m soak --queue $(or $(RECORDS),20000)
	@$(BIN)/python -m soak --spark $(or $(RECORDS),100000)
	@$(BIN)/python -m soak --spark $(or $(RECORDS),100000) --foreach-batch
	@$(BIN)/python -m soak --pipeline $(or $(SECONDS),600)
	@$(BIN)/python -m soak --examples $(or $(EXAMPLE_ROUNDS),3)
	@$(BIN)/python -m soak --cluster-jobs
	@$(BIN)/python -m soak --cluster $(or $(CLUSTER_SECONDS),300)
	@$(BIN)/python -m soak --hosts

docs: $(READY) ## Generate the reference pages in docs/ and the JSON Schema of pipelines
	@$(BIN)/python -m moldau.config.reference > docs/configuration.md
	@$(BIN)/python -m moldau.broker.monitoring.metrics_reference > docs/monitoring.md
	@$(BIN)/python -m moldau.pipelines.reference page > docs/pipelines-reference.md
	@$(BIN)/python -m moldau.pipelines.reference schema > docs/pipeline.schema.json
	@$(BIN)/python -m moldau.pipelines.monitoring_reference > docs/pipelines-monitoring.md

lock: $(READY) ## Pin all dependencies with hashes
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--extra dev --extra connect --extra spark --extra zookeeper --upgrade pyproject.toml requirements/build.in -o requirements/dev.txt

clean: ## Remove the environment and all caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .bench build dist
