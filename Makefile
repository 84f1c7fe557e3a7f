.PHONY: setup run test test-slow test-browser docs format clean
PYTHON ?= python3
BIN := .venv/bin

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
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m "not slow and not browser"

test-slow: setup  ## the tests that take minutes
	$(BIN)/pytest -m slow

test-browser: setup  ## the report page in Chromium, and the figures
	command -v chromium >/dev/null || (apt-get update -q && apt-get install -y -q chromium)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[browser,plots]'
	$(BIN)/pytest tests/browser tests/parts/report/test_figures.py

docs: setup  ## the site, in build/site
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
