# Everything a newcomer runs. `make` alone lists it.
VENV ?= .venv
WORKERS ?= 2
GOLDENS ?= ../shared/goldens
PYTHON := $(VENV)/bin/python
PIP := $(PYTHON) -m pip --disable-pip-version-check install --quiet --quiet
VERSION_CHECK := import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12), (3, 13), (3, 14)))

.PHONY: help env demo test test-quick test-pythons check-install requirements docs nightly lint mutants goldens fuzz soak rows test-real test-page
.DELETE_ON_ERROR:

help:
	@echo 'make demo      pretrain a tiny encoder on the installed documentation: 70 seconds on two CPU cores where packages are cached'
	@echo 'make test      the test suite: 11 minutes on two idle CPU cores the first time, 7 to 8 with .cache'
	@echo 'make test-quick  what a change to the heart needs: goldens, losses, step, resume, a search: a minute once compiled'
	@echo 'make nightly   what make test leaves out: rare settings, every other Python, every set of packages: 22 minutes on two idle cores'
	@echo 'make lint      ruff and pyright'
	@echo 'make goldens   compare with outputs of the official programs in GOLDENS=$(GOLDENS)'
	@echo 'make mutants   draw NUMBER one-line faults with SEED and see that tests notice: 40 minutes for 200'
	@echo 'make fuzz      read 10,000 damaged files with each parser of checkpoints, tokenizers, manifests: minutes'
	@echo 'make soak      kill, stop and damage CYCLES runs and compare their ends; soak.json has the figures: hours'
	@echo 'make rows      train every row of the papers'"'"' ablation tables for 20 steps: minutes'
	@echo 'make test-real real weights and trackers of the package index, imported, exported, written and read: minutes, 1 GB'
	@echo 'make test-page a page of pretrain.report in Chromium: keys, widths, contrast, print; pictures to look at'
	@echo 'make test-pythons  what test-quick runs, with one other Python of this machine (3.11 to 3.14), by the date'
	@echo 'make check-install  resolve what people install on a plain package index, with every Python here: minutes'
	@echo 'make requirements  write the requirements files from pyproject.toml, which has the versions'
	@echo 'make docs      the pages as a site in build/docs; a broken link is an error'
	@echo 'make env       only make $(VENV) and install what development needs'

env: $(VENV)/.requirements-dev

demo: $(VENV)/.requirements
	$(PYTHON) -m pretrain.demo

# tests/conftest.py orders the files by how long they take, which reordering by number of tests would undo.
PYTEST := $(PYTHON) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
QUICK := tests/test_goldens.py tests/test_layering.py tests/finetune/search/test_train.py \
  tests/pretrain/objectives tests/pretrain/test_losses.py tests/pretrain/test_scl_loss.py tests/pretrain/test_optim.py \
  tests/pretrain/checkpoints/test_resume.py tests/pretrain/test_step.py

test: $(VENV)/.requirements-dev
	$(PYTEST)

test-quick: $(VENV)/.requirements-dev
	$(PYTEST) $(QUICK)

# PYTHONS=--all tests each.
PYTHONS ?=
test-pythons: $(VENV)/.requirements-dev
	WORKERS=$(WORKERS) $(PYTHON) -m tests.pythons $(PYTHONS) $(QUICK)

# SETS=all is what .ci/run resolves: every extra at once, so that each part of it resolves too.
SETS ?=
check-install: $(VENV)/bin/python
	$(PYTHON) -m tests.check_install $(SETS)

requirements: $(VENV)/bin/python
	$(PYTHON) -m tests.pins

docs: $(VENV)/.requirements-docs
	$(PYTHON) -m mkdocs build --strict

nightly: $(VENV)/.requirements-dev
	$(PYTEST) -m nightly
	$(PYTHON) -m tests.check_install
	WORKERS=$(WORKERS) $(PYTHON) -m tests.pythons --all $(QUICK)

lint: $(VENV)/.requirements-dev
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m pyright

NUMBER ?= 200
mutants: $(VENV)/.requirements-dev
	$(PYTHON) -m tests.mutants --number=$(NUMBER) --seed=$(SEED)

rows: $(VENV)/.requirements-dev
	ALL_ROWS=1 $(PYTHON) -m pytest --numprocesses $(WORKERS) --dist load tests/configs/test_ablation_training.py

# Each runs although another failed: without ../shared the first and the third say so, and the others need nothing of it.
test-real: $(VENV)/.requirements-dev
	@code=0; for program in real_weights base_size tokenizer_lines real_trackers; do \
	  echo "$(PYTHON) -m tests.$$program"; $(PYTHON) -m tests.$$program || code=$$?; \
	done; exit $$code

# Without Chromium it says how to install it, and fails: a check that was not made is no pass.
test-page: $(VENV)/.requirements-dev
	$(PYTHON) -m tests.page_in_browser

fuzz: $(VENV)/.requirements-dev
	$(PYTHON) -m tests.fuzz

SEED ?= 0
CYCLES ?= 1000
soak: $(VENV)/.requirements-dev
	$(PYTHON) -m tests.faults.soak --seed=$(SEED) --cycles=$(CYCLES) --output=soak.json

goldens: $(VENV)/.requirements-dev
	$(PYTHON) -m tests.goldens $(GOLDENS)
	@[ ! -d $(GOLDENS)/modern ] || $(PYTHON) -m tests.goldens $(GOLDENS)/modern

# An interpreter that exists but does not run (a pyenv shim) or cannot make environments is passed over.
$(VENV)/bin/python:
	@for python in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	  if "$$python" -c 'import ensurepip; $(VERSION_CHECK)' 2>/dev/null; then \
	    echo "making $(VENV) with $$("$$python" --version)"; \
	    exec "$$python" -m venv --clear $(VENV); \
	  fi; \
	done; \
	echo "This project needs Python 3.11 to 3.14 with its venv module; found $$(python3 --version 2>&1)." \
	  "Install one of them and run make again." >&2; \
	exit 1

# `make demo` needs the base alone; pip is silent, so each stage has a line.
$(VENV)/.requirements: requirements-base.txt | $(VENV)/bin/python
	@$(PYTHON) -c '$(VERSION_CHECK)' || { \
	  echo "$(VENV) holds $$($(PYTHON) --version 2>&1); this project needs Python 3.11 to 3.14." \
	    "Remove $(VENV) and run make again." >&2; exit 1; }
	@echo 'installing requirements-base.txt: 69 packages, 1.2 GB; half a minute where they are cached'
	@start=$$(date +%s); $(PIP) --requirement requirements-base.txt && echo "installed in $$(($$(date +%s) - start)) s"
	@touch $@

$(VENV)/.requirements-dev: requirements-dev.txt requirements-export.txt requirements-quick.txt $(VENV)/.requirements
	@echo 'installing requirements-dev.txt: TensorFlow, PyTorch, Beam and the tools, 5 GB; minutes'
	@$(PIP) --requirement requirements-dev.txt
	@touch $@

$(VENV)/.requirements-docs: requirements-docs.txt $(VENV)/.requirements
	@echo 'installing requirements-docs.txt'
	@$(PIP) --requirement requirements-docs.txt
	@touch $@
