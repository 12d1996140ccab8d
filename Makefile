# Everything lives in .venv; it is filled again only when pyproject.toml or what is pinned change.
#   PYTHON       the interpreter to start from              make test PYTHON=python3.12
#   PIP_ARGS     more arguments for pip install             make demo PIP_ARGS="--find-links wheels"
#   PYTEST_ARGS  more arguments for pytest                  make test PYTEST_ARGS="-k heat -x"
#   UNLOCKED     take packages of any hash, such as builds of your own            make test UNLOCKED=1
PYTHON ?= python3
PIP = .venv/bin/python -m pip install --disable-pip-version-check $(PIP_ARGS)
INSTALL = $(PIP) -c constraints.txt
# First what requirements/ has, by hash; then torch, of which everybody has another build, and ours.
LOCKED = $(if $(UNLOCKED),@true,$(PIP) --require-hashes --no-deps -r)

.PHONY: help demo test test-slow bench docs browser lint lock sbom release-check clean

help:
	@echo 'make demo       install into .venv, then compare the algorithms on synthetic data'
	@echo 'make test       the tests that take seconds each'
	@echo 'make test-slow  the tests that take minutes'
	@echo 'make bench      how fast it is, beside plain PyTorch and other simulators; writes docs/speed.md'
	@echo 'make docs       the documentation as a site, in build/site; runs the notebooks that have changed'
	@echo 'make browser    build the client for browsers into clients/browser/dist (needs node and npm)'
	@echo 'make lint       formatting, lint and types'
	@echo 'make lock       write the hashes of what constraints.txt pins into requirements/'
	@echo 'make sbom       list every package in .venv as dist/sbom.cdx.json (CycloneDX)'
	@echo 'make release-check  build and check a release, and say what is left to do'
	@echo 'make clean      remove .venv, caches and build outputs (runs/ and data/ stay)'

demo: .venv/demo.stamp
	.venv/bin/fedrows compare synthetic --out runs/demo --overwrite

test: .venv/dev.stamp
	OMP_NUM_THREADS=1 .venv/bin/pytest -m "not slow" -n 2 --dist worksteal $(PYTEST_ARGS)

# pytest ends with 5 when no test is marked slow
# Four workers on two cores: in a federation, processes wait for each other.
test-slow: .venv/dev.stamp
	OMP_NUM_THREADS=1 .venv/bin/pytest -m slow -n 4 --dist loadscope --no-loadscope-reorder \
		$(PYTEST_ARGS) || [ $$? -eq 5 ]

bench: .venv/dev.stamp
	.venv/bin/fedrows bench all --out benchmarks/results
	.venv/bin/python docs/make_speed.py

docs: .venv/dev.stamp
	OMP_NUM_THREADS=1 .venv/bin/python docs/run_notebooks.py
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

browser: clients/browser/dist/index.html

clients/browser/dist/index.html: clients/browser/node_modules/made.stamp $(wildcard clients/browser/*.js \
		clients/browser/src/*.js clients/browser/src/*/*.js clients/browser/page/*)
	cd clients/browser && node build.js

clients/browser/node_modules/made.stamp: clients/browser/package.json clients/browser/package-lock.json
	cd clients/browser && npm ci --ignore-scripts --loglevel=error
	@touch $@

lint: .venv/dev.stamp
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy fedrows

# torch is left out with all that only its builds for a GPU need: see docs/releasing.md.
GPU = cuda-bindings cuda-pathfinder cuda-toolkit triton nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc \
	nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver \
	nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx
LOCK = .venv/release/bin/uv pip compile --universal --python-version 3.11 -c constraints.txt \
	--generate-hashes --no-annotate --quiet --custom-compile-command 'make lock' \
	$(foreach package,torch $(GPU),--no-emit-package $(package))

lock: .venv/release.stamp
	$(LOCK) pyproject.toml -o requirements/demo.txt
	$(LOCK) pyproject.toml --extra dev -o requirements/dev.txt
	awk '/^[a-z]/{some=/^(numpy|onnxruntime)==/} some' requirements/dev.txt > clients/python/requirements.txt
	$(LOCK) --group release -o requirements/release.txt

sbom: .venv/dev.stamp .venv/release.stamp
	@mkdir -p dist
	.venv/release/bin/cyclonedx-py environment .venv/bin/python --pyproject pyproject.toml --mc-type library \
		--output-reproducible -o dist/sbom.cdx.json

release-check: sbom
	.venv/release/bin/python docs/check_release.py

clean:
	rm -rf .venv build dist clients/browser/dist clients/browser/node_modules *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/demo.stamp: pyproject.toml constraints.txt requirements/demo.txt | .venv/made.stamp
	$(LOCKED) requirements/demo.txt
	$(INSTALL) -e .
	@touch $@

.venv/dev.stamp: pyproject.toml constraints.txt requirements/dev.txt | .venv/made.stamp
	$(LOCKED) requirements/dev.txt
	$(INSTALL) -e '.[dev]'
	@touch $@

# The tools of a release have an environment of their own: they are not in the list of packages.
.venv/release.stamp: requirements/release.txt | .venv/made.stamp
	$(PYTHON) -m venv .venv/release
	.venv/release/bin/python -m pip install --disable-pip-version-check $(PIP_ARGS) --require-hashes \
		-r requirements/release.txt
	@touch $@

.venv/made.stamp:
	@$(PYTHON) -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	{ echo 'fedrows needs Python 3.11 or newer with venv, and "$(PYTHON)" is not that: install it' \
	'(Debian 12, Ubuntu 24.04 and later: apt install python3-venv; macOS: brew install python@3.12)' \
	'or name another one, as in: make demo PYTHON=python3.12' >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@
