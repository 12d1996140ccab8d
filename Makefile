# Everything lives in .venv; it is filled again only when pyproject.toml or constraints.txt change.
#   PYTHON       the interpreter to start from              make test PYTHON=python3.12
#   PIP_ARGS     more arguments for pip install             make demo PIP_ARGS="--find-links wheels"
#   PYTEST_ARGS  more arguments for pytest                  make test PYTEST_ARGS="-k heat -x"
PYTHON ?= python3
INSTALL = .venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt $(PIP_ARGS)

.PHONY: help demo test test-slow bench lint clean

help:
	@echo 'make demo       install into .venv, then compare the algorithms on synthetic data'
	@echo 'make test       the tests that take seconds each'
	@echo 'make test-slow  the tests that take minutes'
	@echo 'make bench      how fast it is, beside plain PyTorch and other simulators; writes docs/speed.md'
	@echo 'make lint       formatting, lint and types'
	@echo 'make clean      remove .venv, caches and build outputs (runs/ and data/ stay)'

demo: .venv/demo.stamp
	.venv/bin/fedrows compare synthetic --out runs/demo --overwrite

test: .venv/dev.stamp
	OMP_NUM_THREADS=1 .venv/bin/pytest -m "not slow" -n 2 --dist worksteal $(PYTEST_ARGS)

# pytest ends with 5 when no test is marked slow
test-slow: .venv/dev.stamp
	.venv/bin/pytest -m slow -n 2 --dist loadfile $(PYTEST_ARGS) || [ $$? -eq 5 ]

bench: .venv/dev.stamp
	.venv/bin/fedrows bench all --out benchmarks/results
	.venv/bin/python docs/make_speed.py

lint: .venv/dev.stamp
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy fedrows

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/demo.stamp: pyproject.toml constraints.txt | .venv/made.stamp
	$(INSTALL) -e '.[cli,report]'
	@touch $@

.venv/dev.stamp: pyproject.toml constraints.txt | .venv/made.stamp
	$(INSTALL) -e '.[dev]'
	@touch $@

.venv/made.stamp:
	@$(PYTHON) -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	{ echo 'fedrows needs Python 3.11 or newer with venv, and "$(PYTHON)" is not that: install it' \
	'(Debian 12, Ubuntu 24.04 and later: apt install python3-venv; macOS: brew install python@3.12)' \
	'or name another one, as in: make demo PYTHON=python3.12' >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@
