# Each target installs what it needs; later runs start immediately.
#   PYTHON       the Python to use, 3.11 or later (default: the first found)
#   TIER         which tests `make test` runs: default, more (the next tier alone), or all
#   TORCH_INDEX  the package index for torch alone (default: that of its CPU builds on a machine without an NVIDIA
#                driver, if it can be reached; otherwise, or if empty, the ordinary index)
#   IMAGE        the name of the image that `make image` builds
#   REGISTRY     the registry of `make release` and `make publish`, and the path in it that the images' names begin with
#   KUBECONFIG   the cluster for `make e2e`
TIER ?= default
$(if $(filter-out default more all,$(TIER)),$(error TIER is $(TIER), and can be default, more or all))
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
# Images with Python often forbid bytecode; each of the many processes here would compile all sources anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check --no-input
TORCH := 2.13.0
# The index of torch's CPU builds.
TORCH_CPU := https://download.pytorch.org/whl/cpu
# The oldest transformers that pyproject.toml allows.
OLDEST := 5.18.0
CLUSTER := ../shared/cluster/cluster
# What `make test-tools` has downloaded.
TEST_TOOLS := $(CURDIR)/build/test-tools
ifneq ($(wildcard $(TEST_TOOLS)/versions),)
export PATH := $(TEST_TOOLS):$(PATH)
export KUBEBUILDER_ASSETS ?= $(TEST_TOOLS)
export FOREIGN_CRDS ?= $(TEST_TOOLS)/crds
endif
# helm and kubectl are not installed here: they are found on PATH or beside the cluster script.
TOOLS = if ! command -v $(1) >/dev/null && [ -x $(CLUSTER) ]; then eval "$$($(CLUSTER) assets)"; fi; \
	command -v $(1) >/dev/null || { echo "make $@: needs $(1) on PATH: run make test-tools" >&2; exit 1; }
RENDER = helm template fairlead charts/fairlead --namespace fairlead-system --skip-tests --values manifests/values.yaml
CHART_FILES := charts/fairlead/files
CRD := $(CHART_FILES)/llmdeployment-crd.yaml
RIGHTS := $(CHART_FILES)/operator-rights.yaml
VALUES_PAGE := charts/fairlead/README.md
# What charts/monitoring generates.
MONITORING := dashboards rules.yaml
MANIFEST := manifests/fairlead.yaml
CHART := docs/throughput.svg
TERMINAL := docs/terminal.svg
OUTDATED = || { echo "make $@: a generated file is outdated: run make manifests figures" >&2; exit 1; }

.PHONY: help
help: ## list the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 22

# $(call STEP,what,command): announce a step, run it, and print its seconds.
STEP = echo "$(1) ..."; SECONDS=0; $(2); echo "$(1): done in $$SECONDS s"

# The kernels are compiled while packages are installed and the model is fetched.
SAMPLE := manifests/samples/smollm2.yaml
.PHONY: up
up: ## serve the sample model on this machine
	@$(MAKE) --no-print-directory --jobs=2 $(VENV)/.native $(VENV)/.sample
	@exec $(BIN)/fairlead up $(SAMPLE)

VERSION := $(shell sed -n 's/^VERSION = "\(.*\)"/\1/p' engine_server/contract/base/version.py)
# No registry is called localhost: a node that lacks the image finds nobody else's by its name.
IMAGE := localhost/fairlead:$(VERSION)
KIND_CLUSTER := fairlead

IMAGE_TORCH_INDEX := $(if $(filter undefined,$(origin TORCH_INDEX)),$(TORCH_CPU),$(TORCH_INDEX))

.PHONY: image
image: ## build the image, with torch's CPU build unless TORCH_INDEX=... chooses another, and print how to load it
	@IMAGE='$(IMAGE)' TORCH_INDEX='$(IMAGE_TORCH_INDEX)' scripts/image

.PHONY: kind
kind: image ## serve the sample model on a kind cluster of this machine
	@IMAGE='$(IMAGE)' CLUSTER='$(KIND_CLUSTER)' scripts/kind

.PHONY: kind-down
kind-down: ## remove the cluster of `make kind`
	@kind delete cluster --name '$(KIND_CLUSTER)'

REGISTRY ?= localhost
RELEASE := build/release

.PHONY: release
release: $(VENV)/.development ## build and check in build/release what is published of a commit: packages, images, chart, manifests, SBOMs
	@$(call TOOLS,helm); VERSION='$(VERSION)' REGISTRY='$(REGISTRY)' TORCH_INDEX='$(IMAGE_TORCH_INDEX)' \
		BIN='$(CURDIR)/$(BIN)' RENDER='$(RENDER)' scripts/release

.PHONY: publish
publish: ## push the images and the chart of build/release to REGISTRY, for which they were built
	@$(call TOOLS,helm); VERSION='$(VERSION)' REGISTRY='$(REGISTRY)' scripts/publish

.PHONY: release-page
release-page: ## make the page of the tag on GitHub from build/release, with gh; the images are in the registry
	@gh release create 'v$(VERSION)' --verify-tag --prerelease --title 'Fairlead $(VERSION)' --notes-file $(RELEASE)/NOTES.md \
		$(RELEASE)/python/* $(RELEASE)/fairlead-* $(RELEASE)/images/digests.txt $(RELEASE)/SHA256SUMS

# A server with the API of S3 for tests. It needs another version of dateutil than the Kubernetes client.
MOTO := moto[s3,server]==5.2.5

.PHONY: test
test: ## a test of each behaviour; TIER=more: matrices and corners; TIER=all; ONLY=router: a folder's; CHANGED=1: affected ones
	@$(MAKE) --no-print-directory --jobs=2 $(VENV)/.native$(if $(filter all,$(TIER)),-all) $(VENV)/.development $(VENV)/.moto
	@$(BIN)/python tests/run.py --tier $(TIER) $(if $(ONLY),--only '$(ONLY)') $(if $(CHANGED),--changed)

.PHONY: test-oldest
test-oldest: $(VENV)/.oldest $(VENV)/.native ## the tests that depend on transformers, with the oldest supported one
	@TRANSFORMERS=$(OLDEST) PYTHONPATH=$(CURDIR)/$(VENV)/oldest OMP_NUM_THREADS=1 $(BIN)/pytest -q \
		--numprocesses logical --maxprocesses 4 --dist loadfile -m 'transformers and not e2e' tests/engine tests/core tests/modeling \
		tests/server/conversation tests/test_foreign_internals.py

.PHONY: test-tools
test-tools: $(VENV)/bin/python ## download helm, envtest and CRDs, which make test and make lint then use
	@$(BIN)/python tests/tools.py $(TEST_TOOLS)

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
	@$(BIN)/python tests/mutations/run.py --check
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	@$(BIN)/zizmor --offline --quiet .github/workflows
	@$(BIN)/pre-commit validate-config
	@$(MAKE) --no-print-directory generated

.PHONY: generated
generated: $(VENV)/.development ## compare the generated files with what would be generated
	@diff -u $(CRD) <($(BIN)/python -m llm_operator.crd) $(OUTDATED)
	@diff -u $(RIGHTS) <($(BIN)/python -m llm_operator.rights) $(OUTDATED)
	@diff -u $(VALUES_PAGE) <($(BIN)/python -m charts.values_page) $(OUTDATED)
	@diff -u $(CHART) <($(BIN)/python -m benchmarks.throughput_chart) $(OUTDATED)
	@diff -u $(TERMINAL) <($(BIN)/python -m scripts.terminal.draw) $(OUTDATED)
	@rm -rf $(VENV)/monitoring; $(BIN)/python -m charts.monitoring $(VENV)/monitoring; for file in $(MONITORING); do \
		diff -ru $(CHART_FILES)/$$file $(VENV)/monitoring/$$file $(OUTDATED); done
	@$(call TOOLS,helm); helm lint --quiet charts/fairlead --values manifests/values.yaml; diff -u $(MANIFEST) <($(RENDER)) $(OUTDATED)

.PHONY: e2e
e2e: $(VENV)/.development $(VENV)/.native ## end-to-end tests on this machine and on a cluster: KUBECONFIG's, or a temporary one
	@$(BIN)/pytest -q -m e2e -p flaky --reruns 1 --durations 10 -rs tests/e2e

# For a GPU machine without a package index that has Python 3.12, torch, Triton and transformers.
GPU_WHEELS := hypothesis llguidance msgspec pillow prometheus-client pyzmq pytest-asyncio sortedcontainers

.PHONY: wheels
wheels: | $(VENV)/bin/python ## collect in build/wheels the dependencies of the GPU benchmark and tests besides torch
	@rm -rf build/wheels
	@$(PIP) download --no-deps --only-binary :all: --python-version 3.12 --implementation cp \
		$(addprefix --platform manylinux_2_,31_x86_64 28_x86_64 27_x86_64 26_x86_64 24_x86_64 17_x86_64) --platform manylinux2014_x86_64 \
		--constraint constraints.txt --dest build/wheels $(GPU_WHEELS)
	@du -ch build/wheels/*

.PHONY: gpu-check
gpu-check: $(VENV)/.development ## without a GPU: import the GPU benchmark and tests with what such a machine has, and compile all kernels
	@TRITON_INTERPRET=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/python tests/gpu_machine.py $(GPU_WHEELS)
	@$(BIN)/pytest -q -m '' --numprocesses logical --durations 3 tests/modeling/test_kernel_compile.py

.PHONY: manifests
manifests: $(VENV)/.development ## generate CRD, rights, README, dashboards and alerts in charts/fairlead, and render the chart into manifests/
	@$(BIN)/python -m llm_operator.crd >$(CRD)
	@$(BIN)/python -m llm_operator.rights >$(RIGHTS)
	@$(BIN)/python -m charts.values_page >$(VALUES_PAGE)
	@rm -rf $(MONITORING:%=$(CHART_FILES)/%); $(BIN)/python -m charts.monitoring $(CHART_FILES)
	@$(call TOOLS,helm); $(RENDER) >$(MANIFEST)

.PHONY: recordings
recordings: $(VENV)/.development ## record what today's programs write to each other: tests/compat/next
	@PYTHONPATH=tests $(BIN)/python -m compat.record

.PHONY: figures
figures: $(VENV)/.development ## draw the chart of the committed results, and README's terminal from its text
	@$(BIN)/python -m benchmarks.throughput_chart >$(CHART)
	@$(BIN)/python -m scripts.terminal.draw >$(TERMINAL)

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
	$(call STEP,creating $(VENV) with $$("$$found" --version),"$$found" -m venv $(VENV))

# torch's CUDA builds are gigabytes larger than its CPU build.
DRIVER := [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi >/dev/null
# The alarm ends the process even while it looks up the host.
ANSWERS = { $(BIN)/python -c 'import signal, urllib.request as web; signal.alarm(2); web.urlopen("$(1)")'; } 2>/dev/null
$(VENV)/.runtime: pyproject.toml constraints.txt | $(VENV)/bin/python
	@$(call STEP,installing pip and build tools (3 MB),$(PIP) install --constraint constraints.txt pip hatchling editables)
	@index='$(TORCH_INDEX)'; \
	if [ '$(origin TORCH_INDEX)' = undefined ] && ! { $(DRIVER); } && $(call ANSWERS,$(TORCH_CPU)/torch/); then \
		index=$(TORCH_CPU); fi; \
	$(call STEP,installing torch from $${index:-the ordinary index} (CPU builds: 200 MB; CUDA builds: 3 GB),$(PIP) install --constraint constraints.txt \
		$${index:+--no-deps --index-url "$$index"} torch)
	@$(call STEP,installing the other dependencies (80 MB),\
		$(PIP) install --constraint constraints.txt --no-build-isolation --editable .)
	@touch $@

# Stamps of the kernels: .native has this machine's instruction level, .native-all every level.
NATIVE := engine_server/modeling/native
KERNELS := $(wildcard $(NATIVE)/*.cpp $(NATIVE)/*.h) $(NATIVE)/build.py $(NATIVE)/levels.py
$(VENV)/.native: $(KERNELS) | $(VENV)/bin/python
	@$(call STEP,compiling the CPU kernels for this machine,$(BIN)/python -m engine_server.modeling.native.build)
	@if compgen -G 'engine_server/modeling/native/*.so' >/dev/null; then touch $@; fi  # not without a compiler

$(VENV)/.native-all: $(KERNELS) | $(VENV)/bin/python
	@$(call STEP,compiling the CPU kernels for every instruction level,\
		$(BIN)/python -m engine_server.modeling.native.build --all)
	@touch $@

$(VENV)/.sample: $(SAMPLE) | $(VENV)/.runtime
	@$(call STEP,fetching the sample model (90 MB),$(BIN)/fairlead fetch $$(sed -n 's/^ *uri: //p' $(SAMPLE)) >/dev/null)
	@touch $@

$(VENV)/.development: $(VENV)/.runtime
	@$(call STEP,installing the dependencies of tests and lint (280 MB),\
		$(PIP) install --constraint constraints.txt --group build --group test --group lint)
	@touch $@

# Its conflict with the Kubernetes client is none: the folder is used by itself.
$(VENV)/.moto: Makefile $(VENV)/.development
	@rm -rf $(VENV)/moto
	@$(call STEP,installing moto into $(VENV)/moto (50 MB),\
		$(PIP) install --no-warn-conflicts --target $(VENV)/moto '$(MOTO)')
	@touch $@

$(VENV)/.oldest: Makefile $(VENV)/.development
	@rm -rf $(VENV)/oldest
	@$(call STEP,installing transformers $(OLDEST) into $(VENV)/oldest (12 MB),\
		$(PIP) install --no-deps --target $(VENV)/oldest transformers==$(OLDEST))
	@touch $@
