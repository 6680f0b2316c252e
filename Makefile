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

.PHONY: shell help demo test test-fast test-scenarios lint format generate check-generated env bench-recovery

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

env:  ## create both environments; prints their Pythons
	@$(RUN) echo "operator: $$op" && echo "trainer:  $$trainer"

demo:  ## train a small model on two local nodes, kill one, watch the run recover
	@$(RUN) $$op -m trainingrun.cli local run examples/pretrain-stdlib.yaml --fresh --fault node-kill@50%,back=15s

test: lint check-generated test-fast test-scenarios  ## everything that CI runs

test-fast:  ## unit, property and parity tests
	@$(RUN) $$op -m pytest tests/operator && $$trainer -m pytest tests/trainer

test-scenarios:  ## whole local lines of processes, with faults
	@$(RUN) $$op -m pytest tests/scenarios

lint:  ## ruff, types, layers
	@op=$(OPERATOR) && $$op -m ruff check . && $$op -m ruff format --check . && $$op -m mypy && \
	  $$(dirname $$op)/lint-imports --no-cache

format:  ## rewrite the code in the project's format
	@op=$(OPERATOR) && $$op -m ruff check --fix . && $$op -m ruff format .

generate:  ## rewrite everything that is generated from code (the CRD)
	@op=$(OPERATOR) && $$op -m trainingrun.api.crd > crds/trainingruns.trainingrun.dev.yaml

check-generated:
	@op=$(OPERATOR) && $$op -m trainingrun.api.crd | diff -u crds/trainingruns.trainingrun.dev.yaml - || \
	  { echo "crds/ differs from the models: run make generate"; exit 1; }

bench-recovery:  ## recovery times beside torchrun (ARGS="--json PATH" for rows)
	@$(RUN) $$op -m benchmarks.recovery $(ARGS)
