# `make demo` and `make test` do everything from a clean clone; they need python3 (3.11 or newer) and make.
# Another Python: make PYTHON=python3.12 test

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Newer than what it depends on exactly when .venv is up to date, so a second `make test` starts at once.
STAMP  := $(VENV)/.installed

# Two processes of one thread each beat one process of two threads, and a spinning idle thread slows its neighbour.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OMP_WAIT_POLICY=passive
PYTEST     := $(ONE_THREAD) $(BIN)/pytest -n 2 --dist loadfile

.PHONY: help demo test check nightly wheel clean distclean
.DELETE_ON_ERROR:

help:
	@echo "make demo       a first look: trains on the embedded images and writes pictures into one folder"
	@echo "make test       the test suite"
	@echo "make check      lint, format and types"
	@echo "make nightly    the long tests"
	@echo "make wheel      build dist/*.whl"
	@echo "make clean      remove caches and builds (distclean: also .venv)"

demo: $(STAMP)
	OMP_WAIT_POLICY=passive $(BIN)/python examples/demo.py

test: $(STAMP)
	$(PYTEST)

check: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict src

nightly: $(STAMP)
	$(PYTEST) -m nightly

wheel: $(STAMP)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls -l dist

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests examples scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean
	rm -rf $(VENV)

$(STAMP): pyproject.toml constraints.txt scripts/make_venv.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; $(PYTHON) is: $$($(PYTHON) --version 2>&1)"; \
	  echo "Install one if there is none, then name it: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) scripts/make_venv.py $(VENV)
	@touch $@
