# The project's commands. Each builds what it needs first: a fresh clone with python3 and make is enough.

PYTHON ?= python3
DATE ?= 2026-03-02
PROCESSES ?= 2
ARGS ?=
export TFX_LINE

.DEFAULT_GOAL := help
.PHONY: help setup run test test-current lock image image-rehearsal clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24
	@echo
	@echo '  DATE=$(DATE)    the Monday that make run takes'
	@echo '  ARGS=...           further arguments for local_runner.py (make run) or pytest (make test)'
	@echo '  PROCESSES=$(PROCESSES)        how many processes make test divides the tests between; each wants a core and 3 GB'
	@echo '  TFX_LINE=1.16|1.21 pick the TFX line by hand (requirements/bootstrap.py says how it is picked)'

setup: ## build .venv/; returns at once when it is up to date
	@$(PYTHON) requirements/bootstrap.py

run: setup ## run the whole pipeline on this machine with the sample data
	.venv/bin/python local_runner.py --snapshot-date $(DATE) $(ARGS)

test: setup ## run the tests
	@.venv/bin/python requirements/bigquery_emulator.py
	@.venv/bin/python requirements/vizier.py
	.venv/bin/python -m pytest tests -n $(PROCESSES) --dist loadfile $(ARGS)

test-current: ## run the tests on TFX 1.21, in a Debian 13 of its own where this machine is too old (as root; DEBIAN_PACKAGES="git ..." adds what tests can use)
	@$(PYTHON) requirements/current.py $(ARGS)

lock: ## recompile requirements/ from pyproject.toml (UPGRADE=1: take newer versions)
	@$(PYTHON) requirements/lock.py $(if $(UPGRADE),--upgrade)

image: ## build the container image (BASE=, BEAM=, IMAGE=: deploy/image.py says what they are)
	@BASE='$(BASE)' BEAM='$(BEAM)' IMAGE='$(IMAGE)' $(PYTHON) deploy/image.py

image-rehearsal: ## carry out deploy/Dockerfile without a container engine, in a Debian 13 of its own (as root)
	@$(PYTHON) deploy/rehearse.py

clean: ## remove .venv/ and caches; leaves store/, where runs and models are
	rm -rf .venv .venv-tools .venv-bigquery .venv-vizier .debian13 .image-rehearsal .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
