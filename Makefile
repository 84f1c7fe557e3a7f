.PHONY: setup run test test-slow test-trust coverage fuzz lock audit test-browser test-federation federation bench-federation docs format release clean
PYTHON ?= python3
BIN := .venv/bin
FLOWER := build/flower
FAST := "not slow and not browser and not federation and not trust"
# One thread for each of pytest's processes. Bytecode is kept although some machines say otherwise:
# pytest compiles 250 files of tests, and tests start dozens of processes.
TESTED := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=
HASHED := install --quiet --disable-pip-version-check --require-hashes --no-deps

# TORCH=2.11.0 installs that version of torch instead of the pinned one, from requirements/torch-2.11.0.txt.
PINNED := $(shell sed -n 's/^torch==//p' constraints.txt)
LOCK := $(if $(filter-out $(PINNED),$(TORCH)),torch-$(TORCH),dev)
READY := .venv/ready$(if $(filter torch-%,$(LOCK)),-$(LOCK))
ifeq ($(wildcard requirements/$(LOCK).txt),)
$(error TORCH must be one of: $(patsubst requirements/torch-%.txt,%,$(wildcard requirements/torch-*.txt)) $(PINNED). Got $(TORCH) instead)
endif

# Installs requirements/$(2).txt into the environment $(1) by its hashes. torch is the build for CPUs
# if pip knows an index that has it, otherwise PyPI's, on Linux with the libraries of CUDA.
define install-lock
	$(if $(filter torch-%,$(2)),,$(1)/bin/pip $(HASHED) -r requirements/cpu.txt 2>/dev/null || true)
	$(1)/bin/pip $(HASHED) -r requirements/$(2).txt
	$(if $(filter torch-%,$(2)),,$(1)/bin/python -c 'import importlib.metadata as m, sys; sys.exit(any("cuda" in r for r in m.requires("torch")))' \
		|| $(1)/bin/pip $(HASHED) -r requirements/cuda.txt)
endef

# The same, and this package as an editable install.
define install
	$(call install-lock,$(1),$(2))
	$(1)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
endef

setup: $(READY)  ## make .venv with pinned dependencies; TORCH=2.11.0 for the oldest torch

$(READY): requirements/$(LOCK).txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tunefree needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	rm -f .venv/ready*
	$(call install,.venv,$(LOCK))
	touch $(READY)

run: setup  ## train on the embedded digits
	$(BIN)/tunefree run

test: setup  ## format, lint, types, tests, doctests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(TESTED) $(BIN)/pytest -n auto -m $(FAST)

test-slow: setup  ## the tests that take minutes
	$(BIN)/pytest -o faulthandler_timeout=0 -m slow

test-trust: setup  ## kills, full disks, broken clients, long runs, bad input: the long forms
	OMP_NUM_THREADS=1 $(BIN)/pytest -o faulthandler_timeout=0 -m trust tests/trust

coverage: setup  ## lines and branches that the tests run, per layer; TESTS=tests/unit/wire for some of them
	rm -rf build/coverage
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest -n auto -m $(FAST) $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage json --quiet -o build/coverage/report.json
	$(BIN)/python tools/coverage_by_layer.py build/coverage/report.json

build/fuzz/ready: requirements/fuzz.txt
	$(BIN)/pip $(HASHED) --target build/fuzz --upgrade -r requirements/fuzz.txt
	touch build/fuzz/ready

fuzz: setup build/fuzz/ready  ## readers of bytes under atheris, which follows coverage: READER="file idx" RUNS=1000000
	cd tests && OMP_NUM_THREADS=1 PYTHONPATH=../build/fuzz:.:.. ../$(BIN)/python -m trust.fuzz.guided $(if $(READER),"$(READER)") --runs $(or $(RUNS),100000)

lock:  ## requirements/*.txt anew, from constraints.txt and PyPI
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --disable-pip-version-check -c constraints.txt uv
	build/lock/bin/python tools/lock.py

audit: setup  ## known vulnerabilities of what is pinned, where the advisory database can be reached
	$(BIN)/python tools/audit.py requirements/*.txt

test-browser: setup  ## the report page and the site in Chromium, and the figures
	command -v chromium >/dev/null || (apt-get update -q && apt-get install -y -q chromium)
	$(BIN)/pip $(HASHED) -r requirements/docs.txt
	$(BIN)/pip $(HASHED) -r requirements/browser.txt
	$(BIN)/pytest tests/browser tests/unit/report/test_figures.py

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
	OMP_NUM_THREADS=1 FLWR_TELEMETRY_ENABLED=0 $(FLOWER)/bin/pytest -m "not trust" -n 2 --dist loadfile --no-loadscope-reorder tests/flower tests/unit/flower tests/unit/cli/test_flower.py tests/unit/privacy src/tunefree/privacy tests/trust/test_fuzz_readers.py tests/trust/test_fuzz_found.py tests/trust/test_soak.py

bench-federation: $(FLOWER)/ready  ## a round over 2, 5 and 10 SuperNodes, beside Flower's simulation; minutes
	$(FLOWER)/bin/pip install --quiet --disable-pip-version-check -c $(FLOWER)/constraints.txt 'flwr[simulation]'
	$(FLOWER)/bin/python -m benchmarks federation --out benchmarks/results

docs: setup  ## the site, in build/site
	$(BIN)/pip $(HASHED) -r requirements/docs.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

build/release/ready: requirements/release.txt
	$(PYTHON) -m venv build/release
	build/release/bin/pip $(HASHED) -r requirements/release.txt
	touch build/release/ready

release: build/release/ready  ## RELEASING.md: check, build, install in a clean environment; uploads nothing
	$(PYTHON) tools/release.py ready
	rm -rf dist build/clean
	build/release/bin/python -m build --no-isolation --outdir dist .
	build/release/bin/twine check --strict dist/*
	$(PYTHON) tools/release.py built dist
	$(PYTHON) -m venv build/clean
	$(call install-lock,build/clean,runtime)
	build/clean/bin/pip install --quiet --disable-pip-version-check --no-deps --no-index dist/*.whl
	build/clean/bin/pip check
	$(PYTHON) tools/release.py installed build/clean

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
