.PHONY: setup run test test-slow test-browser test-federation federation docs format clean
PYTHON ?= python3
BIN := .venv/bin
FLOWER := build/flower

setup: .venv/ready  ## make .venv with pinned dependencies

.venv/ready: constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tunefree needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch setuptools
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	touch .venv/ready

run: setup  ## train on the embedded digits
	$(BIN)/tunefree run

test: setup  ## format, lint, types, tests, doctests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m "not slow and not browser and not federation"

test-slow: setup  ## the tests that take minutes
	$(BIN)/pytest -m slow

test-browser: setup  ## the report page in Chromium, and the figures
	command -v chromium >/dev/null || (apt-get update -q && apt-get install -y -q chromium)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[browser,plots]'
	$(BIN)/pytest tests/browser tests/parts/report/test_figures.py

# Flower holds three packages back that everything else here may have newer, hence its own room.
$(FLOWER)/ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(FLOWER)
	sed -E '/^(packaging|rich|typer)==/d' constraints.txt > $(FLOWER)/constraints.txt
	printf 'packaging==25.0\nrich==14.3.4\ntyper==0.20.1\n' >> $(FLOWER)/constraints.txt
	$(FLOWER)/bin/pip install --quiet --disable-pip-version-check -c $(FLOWER)/constraints.txt torch setuptools
	$(FLOWER)/bin/pip install --quiet --disable-pip-version-check -c $(FLOWER)/constraints.txt --no-build-isolation -e '.[dev,flower]'
	touch $(FLOWER)/ready

federation: $(FLOWER)/ready  ## ten rounds over three SuperNodes on this machine
	$(FLOWER)/bin/tunefree flower demo

test-federation: $(FLOWER)/ready  ## the same, and its faults, under test; minutes
	OMP_NUM_THREADS=1 FLWR_TELEMETRY_ENABLED=0 $(FLOWER)/bin/pytest tests/flower

docs: setup  ## the site, in build/site
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
