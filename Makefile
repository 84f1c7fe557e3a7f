.PHONY: setup run test test-slow test-trust fuzz lock audit test-browser test-federation federation bench-federation docs format clean
PYTHON ?= python3
BIN := .venv/bin
FLOWER := build/flower
HASHED := install --quiet --disable-pip-version-check --require-hashes --no-deps

# Into room $(1) what requirements/$(2).txt lists, by its sums, and this package; torch for CPUs alone
# where pip is told of a place for it, else PyPI's, on Linux with the libraries of CUDA.
define install
	$(1)/bin/pip $(HASHED) -r requirements/cpu.txt 2>/dev/null || true
	$(1)/bin/pip $(HASHED) -r requirements/$(2).txt
	$(1)/bin/python -c 'import importlib.metadata as m, sys; sys.exit(any("cuda" in r for r in m.requires("torch")))' \
		|| $(1)/bin/pip $(HASHED) -r requirements/cuda.txt
	$(1)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
endef

setup: .venv/ready  ## make .venv with pinned dependencies

.venv/ready: requirements/dev.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tunefree needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(call install,.venv,dev)
	touch .venv/ready

run: setup  ## train on the embedded digits
	$(BIN)/tunefree run

test: setup  ## format, lint, types, tests, doctests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m "not slow and not browser and not federation and not trust"

test-slow: setup  ## the tests that take minutes
	$(BIN)/pytest -m slow

test-trust: setup  ## kills, full disks, broken clients, long runs, bad input: the long forms
	OMP_NUM_THREADS=1 $(BIN)/pytest -m trust tests/trust

build/fuzz/ready: requirements/fuzz.txt
	$(BIN)/pip $(HASHED) --target build/fuzz --upgrade -r requirements/fuzz.txt
	touch build/fuzz/ready

fuzz: setup build/fuzz/ready  ## readers of bytes under atheris, which follows coverage: READER="file idx" RUNS=1000000
	cd tests && OMP_NUM_THREADS=1 PYTHONPATH=../build/fuzz:. ../$(BIN)/python -m trust.fuzz.guided $(if $(READER),"$(READER)") --runs $(or $(RUNS),100000)

lock:  ## requirements/*.txt anew, from constraints.txt and PyPI
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --disable-pip-version-check -c constraints.txt uv
	build/lock/bin/python tools/lock.py

audit: setup  ## known vulnerabilities of what is pinned, where the advisory database can be reached
	$(BIN)/python tools/audit.py requirements/*.txt

test-browser: setup  ## the report page in Chromium, and the figures
	command -v chromium >/dev/null || (apt-get update -q && apt-get install -y -q chromium)
	$(BIN)/pip $(HASHED) -r requirements/browser.txt
	$(BIN)/pytest tests/browser tests/parts/report/test_figures.py

# Flower and dp-accounting hold packages back that everything else here may have newer, hence a room of their own.
$(FLOWER)/ready: requirements/flower.txt constraints.txt pyproject.toml
	$(PYTHON) -m venv $(FLOWER)
	sed -E '/^(attrs|packaging|rich|typer)==/d' constraints.txt > $(FLOWER)/constraints.txt
	printf 'attrs==23.2.0\npackaging==25.0\nrich==14.3.4\ntyper==0.20.1\n' >> $(FLOWER)/constraints.txt
	$(call install,$(FLOWER),flower)
	touch $(FLOWER)/ready

federation: $(FLOWER)/ready  ## ten rounds over three SuperNodes on this machine
	$(FLOWER)/bin/python -m examples.federation

test-federation: $(FLOWER)/ready  ## the same, and its faults, under test; minutes
	OMP_NUM_THREADS=1 FLWR_TELEMETRY_ENABLED=0 $(FLOWER)/bin/pytest -m "not trust" -n 2 --dist loadfile --no-loadscope-reorder tests/flower tests/parts/privacy src/tunefree/privacy tests/trust/test_fuzz_readers.py tests/trust/test_fuzz_found.py

bench-federation: $(FLOWER)/ready  ## a round over 2, 5 and 10 SuperNodes, beside Flower's simulation; minutes
	$(FLOWER)/bin/pip install --quiet --disable-pip-version-check -c $(FLOWER)/constraints.txt 'flwr[simulation]'
	$(FLOWER)/bin/tunefree bench federation --out benchmarks/results

docs: setup  ## the site, in build/site
	$(BIN)/pip $(HASHED) -r requirements/docs.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
