# make lab | demo | test | test-all | interpreters | versions | gpu-build | compatibility | faults | workshop | lint | bench | docs | slides | dist. Everything is set up in .venv by the first of them.
#   make lab ARGS="--port 9999"      passes options on to JupyterLab
#   make test ARGS="-k magics"       passes options on to pytest
#   make faults ARGS="--repeat 3"    injects each racy fault 3 times instead of 20
#   make workshop ARGS=10           has ten learners instead of forty
#   make gpu-build                  builds Horovod with CUDA and NCCL, GPU or not: minutes, and GBs
#   make lab PYTHON=python3.12       chooses the Python that .venv is made with
#   make lab TORCH=cpu               takes PyTorch's build for the CPU, or the one for CUDA (cuda)

# Of a checkout that is set up, the one that it was set up with, while that is there: it is a link.
PYTHON ?= $(if $(realpath .venv/bin/python),.venv/bin/python,python3)
ARGS ?=
TORCH ?=
BROWSERS := /usr/bin/chromium /usr/bin/chromium-browser /snap/bin/chromium /usr/bin/google-chrome
export RANKROOM_TORCH ?= $(TORCH)
export RANKROOM_CACHE ?= $(CURDIR)/.cache
# On Ubuntu, Chromium is a snap.
export RANKROOM_CHROMIUM ?= $(or $(firstword $(wildcard $(BROWSERS))),/usr/bin/chromium)

# This checkout's tools before the machine's own.
IN := PATH="$(CURDIR)/.venv/bin:$$PATH"
ROOT_MAY := $(if $(filter 0,$(shell id -u)),--allow-root)

.NOTPARALLEL:
.PHONY: lab demo test test-all interpreters versions gpu-build compatibility faults workshop lint bench docs slides dist set-up set-up-test python lint-only

lab: set-up
	@$(IN) jupyter lab $(ROOT_MAY) notebooks/quickstart.ipynb $(ARGS)

demo: set-up
	@$(IN) rankroom demo $(ARGS)

test: set-up-test lint-only
	$(IN) python tools/test.py $(ARGS)

test-all: set-up-test lint-only
	$(IN) python tools/test.py --all $(ARGS)

interpreters: set-up
	$(IN) python tools/interpreters.py --write docs/pythons.md $(ARGS)

versions: set-up-test
	$(IN) python tools/versions.py --write docs/pythons.md $(ARGS)

gpu-build: set-up
	$(IN) python tools/gpu_build.py $(ARGS)

compatibility: set-up-test
	$(IN) python tools/compatibility.py --write docs/compatibility.md $(ARGS)

faults: set-up-test
	$(IN) python -m pytest tests/faults tests/slurm --repeat 20 $(ARGS)

workshop: set-up-test
	$(IN) python tests/slurm/workshop_trial.py $(ARGS)

lint: set-up lint-only

bench: set-up-test
	$(IN) python bench/run.py $(ARGS)

docs: set-up
	$(IN) python tools/docs.py $(ARGS)

slides: set-up
	@$(IN) python tools/slides.py $(ARGS)

dist: set-up
	rm -f dist/*.whl
	$(IN) python -m build --wheel --no-isolation
	@ls -l dist/*.whl

lint-only:
	$(IN) ruff check
	$(IN) ruff format --check
	$(IN) mypy
	$(IN) codespell README.md CONTRIBUTING.md CHANGELOG.md docs/*.md slurm notebooks
	$(IN) npm --prefix extension run --silent check:schema
	$(IN) npm --prefix extension run --silent build:lib
	$(IN) npm --prefix extension run --silent lint
	$(IN) npm --prefix extension run --silent test

set-up: python
	@$(PYTHON) tools/setup.py

set-up-test: python
	@$(PYTHON) tools/setup.py --test

python:
	@[ "$$(uname -s)" = Linux ] || { echo "Rankroom runs on Linux only: its ranks depend on Linux processes and sockets."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null || { \
	  echo "The set-up needs Python 3.10 to 3.14, and $(PYTHON) is not: install one (Debian: apt install"; \
	  echo "python3 python3-venv; uv python install 3.13), or name one: make lab PYTHON=python3.13"; \
	  exit 1; }
