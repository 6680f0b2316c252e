# Two commands do everything on a machine with Python 3.11 and pip: `make demo` and `make test`.
PYTHON ?= python3
SHELL := /bin/bash
.DEFAULT_GOAL := help
export PYTHONPATH := $(CURDIR)/operator:$(CURDIR)/trainer_image
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

OPERATOR = $$($(PYTHON) tools/setup_env.py operator)
TRAINER  = $$($(PYTHON) tools/setup_env.py trainer)
RUN      = op=$(OPERATOR) && trainer=$(TRAINER) && export TRAININGRUN_TRAINER_PYTHON=$$trainer &&

shell:  ## a shell in which `trainingrun` works
	@$(RUN) bin=$$(mktemp -d) && printf '#!/bin/sh\nexec %s -m trainingrun.cli "$$@"\n' $$op > $$bin/trainingrun && chmod +x $$bin/trainingrun && PATH=$$bin:$$PATH $${SHELL:-/bin/bash}; rm -rf $$bin

.PHONY: shell help demo cluster-demo cluster test test-fast test-scenarios test-cluster lint format generate check-generated env bench-checkpoints bench-data bench-memory bench-parity bench-planner bench-throughput bench-recovery bench-recovery-cluster check-images

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

env:  ## create both environments; prints their Pythons
	@$(RUN) echo "operator: $$op" && echo "trainer:  $$trainer"

demo:  ## train a small model on two local nodes, kill one, watch the run recover
	@$(RUN) $$op -m trainingrun.cli local run examples/pretrain-stdlib.yaml --fresh --fault node-kill@50%,back=15s

cluster-demo:  ## the same on a real Kubernetes of three nodes on this machine (needs root): install, run, lose a node
	@$(RUN) $$op -m tests.cluster.demo $(ARGS)

check-images:  ## build both images and run them, unless this content passed before (needs root)
	@$(RUN) $$op -m tools.check_images $(ARGS)

test: lint check-generated test-fast test-scenarios test-cluster  ## everything that CI runs

test-fast:  ## unit, property and parity tests
	@$(RUN) $$op -m pytest tests/operator && $$trainer -m tests.second_try tests/trainer

test-scenarios:  ## whole local lines of processes, with faults
	@$(RUN) $$op -m tests.second_try tests/scenarios

test-cluster:  ## the scenarios and the cluster's own faults on a real Kubernetes of three nodes (needs root)
	@$(RUN) $$op -m tests.cluster.suite $(ARGS)

cluster:  ## the test cluster's command (ARGS="up", "down", "status", "partition node1", …)
	@$(RUN) $$op -m tests.cluster.harness $(ARGS)

lint:  ## ruff, types, layers
	@op=$(OPERATOR) && $$op -m ruff check . && $$op -m ruff format --check . && $$op -m mypy && \
	  $$(dirname $$op)/lint-imports --no-cache

format:  ## rewrite the code in the project's format
	@op=$(OPERATOR) && $$op -m ruff check --fix . && $$op -m ruff format .

generate:  ## rewrite everything that is generated from code (the CRD, the chart's copy and tables)
	@op=$(OPERATOR) && $$op -m trainingrun.api.crd > crds/trainingruns.trainingrun.dev.yaml && $$op -m tools.generate_chart

check-generated:
	@op=$(OPERATOR) && $$op -m trainingrun.api.crd | diff -u crds/trainingruns.trainingrun.dev.yaml - || \
	  { echo "crds/ differs from the models: run make generate"; exit 1; }
	@op=$(OPERATOR) && $$op -m tools.generate_chart --check

bench-checkpoints:  ## what saving costs a step and a disk, beside torch.save and dcp (ARGS="--json PATH" for rows)
	@$(RUN) $$trainer -m benchmarks.checkpoints $(ARGS)

bench-data:  ## how fast a rank reads its micro-batches, beside datasets with a DataLoader (ARGS="--json PATH" for rows)
	@$(RUN) $$trainer -m benchmarks.data_reading $(ARGS)

bench-throughput:  ## tokens a second beside transformers' Trainer and a plain loop (ARGS="--page" for docs/benchmarks.md)
	@$(RUN) $$trainer -m benchmarks.throughput $(ARGS)

bench-memory:  ## peak memory of real ranks beside the planner's prediction (ARGS="--page" for docs/benchmarks.md)
	@$(RUN) $$trainer -m benchmarks.memory $(ARGS)

bench-recovery-cluster:  ## the same on the test cluster, torchrun in plain pods beside it (needs root; about 50 min)
	@$(RUN) $$op -m benchmarks.cluster_recovery $(ARGS)

bench-planner:  ## how long the planner searches; with ROWS=FILE.csv also its predictions beside those measurements
	@$(RUN) $$op -m benchmarks.planner_search && if [ -n "$(ROWS)" ]; then \
	  $$op -m benchmarks.planner_accuracy --rows "$(ROWS)" --out "$${OUT:-/dev/null}" --score; fi

bench-parity:  ## every layout and family beside a plain transformers loop; writes docs/parity.md (ARGS="--only TEXT")
	@$(RUN) $$trainer -m benchmarks.parity $(ARGS)

bench-recovery:  ## recovery times beside torchrun (ARGS="--json PATH" for rows)
	@$(RUN) $$op -m benchmarks.recovery $(ARGS)
