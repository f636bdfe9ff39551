# Each target installs what it needs; later runs start immediately.
#   PYTHON       the Python to use, 3.11 or later (default: the first found)
#   TIER         which tests `make test` runs: default, or all
#   TORCH_INDEX  the package index for torch alone, e.g. of its CPU builds (default: the ordinary index)
#   KUBECONFIG   the cluster for `make e2e`
TIER ?= default
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check --no-input
TORCH := 2.13.0
TORCH_INDEX ?=
# The oldest transformers that pyproject.toml allows, and its dependencies that differ from constraints.txt.
OLDEST := 5.17.0
OLDEST_NEEDS := huggingface-hub==1.33.0 httpx==0.28.1 httpcore==1.0.9
CLUSTER := ../shared/cluster/cluster
# helm and kubectl are not installed here: they are found on PATH or beside the cluster script.
TOOLS = if ! command -v $(1) >/dev/null && [ -x $(CLUSTER) ]; then eval "$$($(CLUSTER) assets)"; fi; \
	command -v $(1) >/dev/null || { echo "make $@: needs $(1) on PATH" >&2; exit 1; }
RENDER = helm template fairlead charts/fairlead --namespace fairlead-system --skip-tests
CHART_FILES := charts/fairlead/files
CRD := $(CHART_FILES)/llmdeployment-crd.yaml
# What charts/monitoring generates.
MONITORING := dashboards rules.yaml
MANIFEST := manifests/fairlead.yaml
OUTDATED = || { echo "make lint: a generated file is outdated: run make manifests" >&2; exit 1; }

.PHONY: help
help: ## list the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 22

.PHONY: up
up: $(VENV)/.native ## serve the sample model on this machine
	@exec $(BIN)/fairlead up manifests/samples/smollm2.yaml

# A server with the API of S3 for tests. It needs another version of dateutil than the Kubernetes client.
MOTO := 5.2.5

.PHONY: test
test: $(VENV)/.development $(VENV)/.native$(if $(filter all,$(TIER)),-all) $(VENV)/.moto ## all tests but the exhaustive and end-to-end ones; ONLY=router: a folder's, CHANGED=1: those that the changes since main touch, TIER=all: exhaustive ones too
	@$(BIN)/python tests/run.py $(if $(filter all,$(TIER)),--all) $(if $(ONLY),--only '$(ONLY)') $(if $(CHANGED),--changed)

.PHONY: test-oldest
test-oldest: $(VENV)/.oldest $(VENV)/.native ## the tests that depend on transformers, with the oldest supported one
	@TRANSFORMERS=$(OLDEST) PYTHONPATH=$(CURDIR)/$(VENV)/oldest OMP_NUM_THREADS=1 $(BIN)/pytest -q \
		--numprocesses logical --maxprocesses 4 --dist loadfile -m 'transformers and not thorough and not e2e'

.PHONY: mutations
mutations: $(VENV)/.development $(VENV)/.native ## check that the tests notice faults put into the scheduler, the router and the operator
	@$(BIN)/python tests/mutations/run.py

.PHONY: lint
lint: $(VENV)/.development ## style, types, import contracts, file sizes, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(BIN)/python .ci/budgets.py
	@diff -u $(CRD) <($(BIN)/python -m llm_operator.api.crd) $(OUTDATED)
	@rm -rf $(VENV)/monitoring; $(BIN)/python -m charts.monitoring $(VENV)/monitoring; for file in $(MONITORING); do \
		diff -ru $(CHART_FILES)/$$file $(VENV)/monitoring/$$file $(OUTDATED); done
	@$(call TOOLS,helm); helm lint --quiet charts/fairlead; diff -u $(MANIFEST) <($(RENDER)) $(OUTDATED)

.PHONY: e2e
e2e: $(VENV)/.development $(VENV)/.native ## end-to-end tests on this machine and on a cluster: KUBECONFIG's, or a temporary one
	@$(BIN)/pytest -q -m e2e -p flaky --reruns 1 --durations 10 -rs tests/e2e

# For a GPU machine without a package index that has Python 3.12, torch, Triton and transformers.
GPU_WHEELS := msgspec prometheus-client pyzmq pytest-asyncio

.PHONY: wheels
wheels: | $(VENV)/bin/python ## collect in build/wheels the dependencies of the GPU benchmark and tests besides torch
	@rm -rf build/wheels
	@$(PIP) download --no-deps --only-binary :all: --python-version 3.12 --implementation cp \
		$(addprefix --platform manylinux_2_,28_x86_64 27_x86_64 26_x86_64 24_x86_64 17_x86_64) --platform manylinux2014_x86_64 \
		--constraint constraints.txt --dest build/wheels $(GPU_WHEELS)
	@du -ch build/wheels/*

.PHONY: manifests
manifests: $(VENV)/.development ## generate CRD, dashboards and alerts in charts/fairlead, and render the chart into manifests/
	@$(BIN)/python -m llm_operator.api.crd >$(CRD)
	@rm -rf $(MONITORING:%=$(CHART_FILES)/%); $(BIN)/python -m charts.monitoring $(CHART_FILES)
	@$(call TOOLS,helm); $(RENDER) >$(MANIFEST)

# Pins for every platform and Python from 3.11 on, without naming a package index.
.PHONY: constraints
constraints: $(VENV)/.development ## update constraints.txt; WHAT=package updates one
	$(BIN)/uv pip compile --quiet pyproject.toml --all-extras --group build --group test --group lint \
		--universal --python-version 3.11 --no-annotate --custom-compile-command "make constraints" \
		--constraint <(echo "torch==$(TORCH)") $(if $(WHAT),--upgrade-package $(WHAT),--upgrade) --output-file constraints.txt

$(VENV)/bin/python:
	@python="$(PYTHON)"; \
	for name in $${python:-python3 python3.14 python3.13 python3.12 python3.11}; do \
		if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$name; break; fi; \
	done; \
	[ -n "$${found:-}" ] || { echo "make: needs Python 3.11 or later; set PYTHON=..." >&2; exit 1; }; \
	echo "creating $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing torch into $(VENV) (the largest part) ..."
	@$(PIP) install --constraint constraints.txt pip hatchling editables
	@$(PIP) install --constraint constraints.txt $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) torch
	@echo "installing the other dependencies ..."
	@$(PIP) install --constraint constraints.txt --no-build-isolation --editable .
	@touch $@

NATIVE := engine_server/modeling/native
$(VENV)/.native: $(wildcard $(NATIVE)/*.cpp $(NATIVE)/*.h) $(NATIVE)/build.py | $(VENV)/.runtime
	@echo "compiling the CPU kernels ..."
	@$(BIN)/python -m engine_server.modeling.native.build
	@touch $@

$(VENV)/.development: $(VENV)/.runtime
	@echo "installing the dependencies of tests and lint ..."
	@$(PIP) install --constraint constraints.txt --group build --group test --group lint
	@touch $@

$(VENV)/.moto: Makefile $(VENV)/.development
	@echo "installing moto $(MOTO) into $(VENV)/moto ..."
	@rm -rf $(VENV)/moto
	@$(PIP) install --target $(VENV)/moto 'moto[s3,server]==$(MOTO)'
	@touch $@

$(VENV)/.oldest: Makefile $(VENV)/.development
	@echo "installing transformers $(OLDEST) into $(VENV)/oldest ..."
	@rm -rf $(VENV)/oldest
	@$(PIP) install --no-deps --target $(VENV)/oldest transformers==$(OLDEST) $(OLDEST_NEEDS)
	@touch $@
