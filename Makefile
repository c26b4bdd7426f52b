# Everything happens in .venv, from a checkout and four programs: python3.11, venv, make and git.

.DEFAULT_GOAL := help
.PHONY: help setup setup-core page screenshots tasks demo demo-processes cuda tour check test docs references changelog nightly simulate crashes gangs rare stores figures soak bench bench-aws lambda lint clean distclean

# Tests start many processes, each of which would compile the packages that pip did not.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.stamp-core
PACKAGES := $(VENV)/.stamp-packages
SETUP := $(VENV)/.stamp-setup
BENCH := $(VENV)/.stamp-bench
EMULATORS := $(VENV)-ministack/.stamp
AZURITE := $(VENV)-azurite/.stamp
FUNCTIONS := $(VENV)-functions/.stamp
HADOOP := $(VENV)-hadoop/.stamp
DASHBOARD := $(VENV)-dashboard/.stamp
PAGE := $(VENV)/.stamp-page
DOCS := $(VENV)/.stamp-docs
PAGE_SOURCES := $(shell find web control_plane/api -name node_modules -prune -o -type f -not -name '*.pyc' -print)
CORE_EXTRAS := server,torch,examples,dev
EXTRAS := $(CORE_EXTRAS),postgres,optuna,aws,gcp,gcs,azure,functions,infra,telemetry,docs,test
# Two streams of tests that start processes, about as long as each other: each waits most of its time.
DEPLOYED := tests/end_to_end/aws tests/integration tests/hostile
USED := tests/end_to_end
SEEDS ?= 10000
OUTCOMES ?= .detcloud/simulated.jsonl
SOAK_MINUTES ?= 60
# Nightly tests may take any time.
UNLIMITED := -o timeout=0 -o faulthandler_timeout=0
AREA ?=
JOURNEY ?=
# Options of `make cuda`, such as --gpus 8.
GPU_CHECK ?=
GPU_CHECK_FILE := dist/gpu_check.pyz
GPU_CHECK_SOURCES := $(wildcard examples/gpu_check/*.py)
RELEASE ?=
DETCLOUD := $(BIN)/python -m detcloud.cli.main
# KEEP=1 leaves the demo's cluster running.
KEEP ?=
LOOK := echo "look at it: DETCLOUD_HOME=$$DETCLOUD_HOME $(DETCLOUD) open"
END_DEMO := $(if $(KEEP),$(LOOK),$(DETCLOUD) down; echo "make demo KEEP=1 leaves the cluster running and says where to look")

help:
	@echo "make demo       run a random search on a cluster on this machine, and stop it; KEEP=1 does not"
	@echo "make demo-processes  train one model in two processes on a cluster on this machine, and stop it"
	@echo "make cuda       check in under 5 minutes that the GPUs of this machine train; GPU_CHECK='--gpus 8' passes options"
	@echo "make tour JOURNEY=create  print the path of a message through the product; without JOURNEY, list the journeys"
	@echo "make check      lint, types and the fast tests; AREA=searchers: the checks of one area only"
	@echo "make test       run all tests except the nightly tests; skipped tests are listed with reasons"
	@echo "make nightly    the long sweeps: $(SEEDS) simulated clusters, every crash, gangs, rare tests, real HDFS, a short bench, $(SOAK_MINUTES) minutes of soak"
	@echo "make lint       ruff, mypy and the import contracts"
	@echo "make setup-core create $(VENV) with the packages for the demo and make check; other targets install more"
	@echo "make setup      install the packages for all tests"
	@echo "make lambda     build the archives of the deployed functions into dist/"
	@echo "make bench      install the peers and measure detcloud against them"
	@echo "make bench-aws  measure the form that is deployed to AWS; needs no account"
	@echo "make page       build the web page again; needs Node 20.19 or newer, which pip can install"
	@echo "make docs       build the documentation site into build/site, and check its links, anchors and words"
	@echo "make references  generate the documents that are made from the code: configurations, the command line, the Python API and stored rows"
	@echo "make changelog  print the changes of docs/changes; RELEASE=0.2.0 moves them into CHANGELOG.md"
	@echo "make screenshots  take the pictures of the web page in docs/pictures again; needs Chromium"
	@echo "make tasks      do twelve tasks of a researcher on the web page and in Optuna's dashboard, and count clicks; needs Chromium"
	@echo "make clean      remove the files that other targets made, but not $(VENV); distclean also removes $(VENV)"

setup: $(SETUP)

setup-core: $(CORE)

$(BIN)/python:
	@PYTHON="$(PYTHON)" sh .ci/make-venv $(VENV)

$(CORE): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[$(CORE_EXTRAS)]'
	@touch $@

# Four environments and the page, which `make --jobs 2 setup` fills beside each other.
$(SETUP): $(PACKAGES) $(EMULATORS) $(FUNCTIONS) $(AZURITE) $(PAGE)
	@touch $@

$(PACKAGES): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@ $(CORE) $(DOCS)

# AWS on this machine, apart from ours: it pins the versions of its own packages.
$(EMULATORS): emulators.txt
	@PYTHON="$(PYTHON)" sh .ci/make-venv $(VENV)-ministack
	$(VENV)-ministack/bin/python -m pip install --quiet --no-compile -r emulators.txt
	@touch $@

# Google's functions-framework, apart from ours: it changes how every Python beside it starts.
$(FUNCTIONS): functions-framework.txt
	@PYTHON="$(PYTHON)" sh .ci/make-venv $(VENV)-functions
	$(VENV)-functions/bin/python -m pip install --quiet --no-compile -r functions-framework.txt
	@touch $@

# Azure's storage on this machine, where there is Node; elsewhere its tests say what they lack.
$(AZURITE):
	@mkdir -p $(@D)
	@if command -v npm >/dev/null; then \
	npm install --silent --no-audit --no-fund --prefix $(@D) azurite@3.35.0; fi
	@touch $@

# HDFS on this machine, 230 MB that the nightly tests alone need.
$(HADOOP): $(SETUP) .ci/fetch-hadoop
	sh .ci/fetch-hadoop $(@D) $(CURDIR)/$(BIN)/python

# Without Node everything but the page works, so that what cannot be fetched ends no setup. A demo
# needs no other packages for it than its own.
$(PAGE): $(PAGE_SOURCES) .ci/build-page | $(if $(filter demo,$(MAKECMDGOALS)),$(CORE),$(PACKAGES))
	@sh .ci/build-page $(VENV) optional
	@touch $@

page: $(CORE)
	@sh .ci/build-page $(VENV)
	@touch $(PAGE)

# The generator and the spelling checker; the site itself is built without a network.
$(DOCS): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(DOCS)
	@$(BIN)/python -m docs_site build

# A reference that cannot be rendered leaves its document as it was.
references: $(CORE) $(DOCS)
	@set -e; trap 'rm -f docs/.reference' EXIT; render() { $(BIN)/python -m $$1 > docs/.reference; mv docs/.reference docs/$$2; }; \
	render "control_plane.config --reference" configuration.md; \
	render "control_plane.config.cluster --reference" cluster-configuration.md; \
	render control_plane.row_reference state.md; \
	render detcloud.cli.reference cli.md
	@$(BIN)/python -m docs_site.python_reference

# The fragments of docs/changes as the next section; RELEASE=0.2.0 writes it into CHANGELOG.md.
changelog: $(CORE)
	@$(BIN)/towncrier build $(if $(RELEASE),--yes --version $(RELEASE),--draft --version Unreleased)

# Two of the pictures show a notebook.
screenshots: $(SETUP)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt jupyterlab
	$(BIN)/python -m tests.end_to_end.page_screenshots docs/pictures
	$(BIN)/python -m tests.end_to_end.command_pictures docs/pictures

# The peer of the web page, apart from our packages.
$(DASHBOARD):
	@PYTHON="$(PYTHON)" sh .ci/make-venv $(VENV)-dashboard
	$(VENV)-dashboard/bin/python -m pip install --quiet --no-compile optuna-dashboard==0.21.0
	@touch $@

tasks: $(SETUP) $(DASHBOARD)
	$(BIN)/python -m tests.end_to_end.tasks --dashboard $(VENV)-dashboard/bin/optuna-dashboard

$(BENCH): $(SETUP)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[$(EXTRAS),bench]'
	@touch $@

demo: $(CORE) $(if $(KEEP),$(PAGE))
	@DETCLOUD_HOME="$${DETCLOUD_HOME:-$(CURDIR)/.detcloud/demo}"; export DETCLOUD_HOME; \
	trap 'exit 130' INT TERM; trap '$(END_DEMO)' EXIT; \
	$(DETCLOUD) create examples/digits/random.yaml examples/digits --follow

demo-processes: $(CORE)
	@DETCLOUD_HOME="$${DETCLOUD_HOME:-$(CURDIR)/.detcloud/demo}"; export DETCLOUD_HOME; \
	trap 'exit 130' INT TERM; trap '$(DETCLOUD) down' EXIT; \
	$(DETCLOUD) up --slots 2 && \
	$(DETCLOUD) create examples/digits/two_processes.yaml examples/digits --follow

cuda: $(CORE) $(GPU_CHECK_FILE)
	@$(BIN)/python $(GPU_CHECK_FILE) $(GPU_CHECK)

# A program of one file, to copy to a machine that has a GPU and torch.
$(GPU_CHECK_FILE): $(GPU_CHECK_SOURCES) | $(CORE)
	@mkdir -p $(@D)/gpu_check
	@cp $(GPU_CHECK_SOURCES) $(@D)/gpu_check
	@$(BIN)/python -m zipapp --python '/usr/bin/env python3' --output $@ $(@D)/gpu_check

tour: $(CORE)
	@$(BIN)/python -m tests.tour $(JOURNEY)

check: $(CORE)
	@$(BIN)/python -m tests.check $(AREA)

# What starts processes mostly waits, so it runs beside the tests that compute, which give way to it
# and say what they have to say first.
test: $(SETUP)
	@$(BIN)/python -m pytest -ra -n 2 --dist loadfile --max-worker-restart 0 $(USED) $(DEPLOYED:%=--ignore=%) > .used.log 2>&1 & used=$$!; \
	$(BIN)/python -m pytest -ra $(DEPLOYED) > .deployed.log 2>&1 & deployed=$$!; \
	nice -n 19 $(BIN)/python -m pytest -ra -n logical --dist worksteal $(USED:%=--ignore=%) $(DEPLOYED:%=--ignore=%); \
	failed=$$?; wait $$used || failed=1; cat .used.log; wait $$deployed || failed=1; \
	cat .deployed.log; rm -f .used.log .deployed.log; exit $$failed

nightly: simulate crashes gangs rare stores figures soak

simulate: $(CORE)
	@mkdir -p $(dir $(OUTCOMES))
	$(BIN)/python -m simulator --seeds $(SEEDS) --output $(OUTCOMES)

# A crash at every commit, not at a sample of them.
crashes: $(SETUP)
	CRASH_STRIDE=1 $(BIN)/python -m pytest $(UNLIMITED) -ra -m '' -n logical --dist worksteal tests/simulation/test_*crash*.py

# Every API and disturbance of trials on one, two and four processes, on one agent and on two.
gangs: $(SETUP)
	$(BIN)/python -m pytest $(UNLIMITED) -ra -m nightly tests/end_to_end/test_gang_weights.py

# What is near to a test of the gate, and dear.
rare: $(SETUP)
	$(BIN)/python -m pytest $(UNLIMITED) -ra -m nightly --ignore=tests/end_to_end/test_gang_weights.py tests
	CONTROL_SEEDS=16 $(BIN)/python -m pytest $(UNLIMITED) -ra -k control_clusters tests/simulation/test_mutants.py
	LIFECYCLE_EXAMPLES=10 $(BIN)/python -m pytest $(UNLIMITED) -ra tests/integration/test_lifecycle_machine.py
	REQUEST_EXAMPLES=8 $(BIN)/python -m pytest $(UNLIMITED) -ra tests/integration/test_hostile_requests.py

# Each group of the bench at its smallest: does it still run?
figures: $(SETUP)
	$(BIN)/python -m bench --quick

# Checkpoints in real HDFS, and whether the model of it that the other tests use answers alike.
stores: $(HADOOP)
	$(BIN)/python -m pytest $(UNLIMITED) -ra -m nightly tests/conformance

soak: $(CORE)
	$(BIN)/python -m tests.end_to_end.soak --minutes $(SOAK_MINUTES)

lambda: $(SETUP)
	$(BIN)/python -m infra.aws.bundle

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(BENCH)
	$(BIN)/python -m bench

bench-aws: $(SETUP)
	$(BIN)/python -m bench aws

clean:
	rm -rf build dist .detcloud/demo $(OUTCOMES) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf .import_linter_cache control_plane/page/built web/node_modules $(PAGE)
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) $(VENV)-ministack $(VENV)-azurite $(VENV)-functions $(VENV)-hadoop $(VENV)-dashboard
