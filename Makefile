# Everything a newcomer needs is `make demo` and `make test`: they bring their own environment into .venv.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# Compiled modules are kept, whatever the caller set: half the time of short runs would go into compiling them anew.
export PYTHONDONTWRITEBYTECODE :=

# All but ray, which brings too much for every checkout; its tests have an environment of their own.
LOCKED_EXTRAS = $(shell $(PY) -c 'import tomllib; \
  [print("--extra", name) for name in tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"] if name != "ray"]')

UV_VERSION := 0.13.8
VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
DEMO_VENV ?= .venv-demo
DEMO_STAMP := $(DEMO_VENV)/.installed
DEMO ?=
# Links the kernels where there is no compiler `cc`; not in the lock, because it has 80 MB.
ZIG := ziglang>=0.13
# What `make test` leaves to the slower suites of .ci/run.
UNIT := not (integration or slow or notebook or faults or kills or fuzz or engines)
PYTEST_ARGS ?=
# How much of a whole `make soak`, on how many processes.
SHARE ?= 1
JOBS ?= 2

.PHONY: help venv kernels demo test soak bench bench-quick bench-needs lint format docs notebooks wheel lock clean

help:  ## what there is to run
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(STAMP): requirements.lock pyproject.toml tools/find_python.sh
	@python="$$(tools/find_python.sh)" || exit 1; \
	echo "creating $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV) || { echo "Python cannot create environments: install its venv module (Debian: python3-venv)." >&2; exit 1; }
	@$(PY) -m pip install --quiet --disable-pip-version-check "uv==$(UV_VERSION)"
	@$(VENV)/bin/uv pip sync --quiet --require-hashes --python $(PY) requirements.lock
	@$(VENV)/bin/uv pip install --quiet --python $(PY) --no-deps --editable .
	@touch $@

venv: kernels  ## create .venv from the lock file, and compile the kernels

# The whole environment if it exists, else a smaller one. `make demo DEMO=--all` shows more topics.
demo:  ## write a small tier of orders and read it with Spark
	@if [ -e $(STAMP) ]; then venv=$(VENV); $(MAKE) --no-print-directory kernels || exit 1; \
	else venv=$(DEMO_VENV); $(MAKE) --no-print-directory $(DEMO_STAMP) || exit 1; fi; \
	VENV=$$venv tools/with_java.sh $$venv/bin/kts demo $(DEMO)

# The compiler is removed after its work, because it has 200 MB.
$(DEMO_STAMP): requirements.lock pyproject.toml tools/find_python.sh $(wildcard segment_format/*.py segment_format/*/*.py segment_format/*/*/*.py)
	@python="$$(tools/find_python.sh)" || exit 1; \
	echo "creating $(DEMO_VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(DEMO_VENV) || { echo "Python cannot create environments: install its venv module (Debian: python3-venv)." >&2; exit 1; }
	@$(DEMO_VENV)/bin/python -m pip install --quiet --disable-pip-version-check "uv==$(UV_VERSION)"
	@install() { $(DEMO_VENV)/bin/uv pip install --quiet --python $(DEMO_VENV)/bin/python --constraints requirements.lock "$$@"; }; \
	install --editable '.[spark,cli,jit]' && { VENV=$(DEMO_VENV) tools/with_java.sh true 2>/dev/null || install --editable '.[jdk]'; } && \
	{ command -v cc >/dev/null || install "$(ZIG)"; } && $(DEMO_VENV)/bin/python -m tools.build_kernels && \
	$(DEMO_VENV)/bin/uv pip uninstall --quiet --python $(DEMO_VENV)/bin/python numba llvmlite ziglang
	@touch $@

# Compiled again after a change of their sources; without a C compiler, zig links them.
kernels: $(STAMP)  ## compile the kernels, unless they are current
	@command -v cc >/dev/null || $(VENV)/bin/uv pip install --quiet --python $(PY) "$(ZIG)"
	@$(PY) -m tools.build_kernels

test: kernels  ## the tests (no network beyond the package registries, no broker)
	@tools/with_java.sh $(PY) -m pytest -n 3 --dist loadgroup -m "$(UNIT)" --ignore=tests/integration $(PYTEST_ARGS)

soak: kernels  ## bad inputs, random histories and failing stores; the result goes to benchmarks/SOAK.md
	@$(PY) -m tools.soak --share $(SHARE) --jobs $(JOBS)

bench: bench-needs  ## everything measured, with peers, in one run; renews benchmarks/RESULTS.md
	@tools/with_java.sh $(PY) -m benchmarks --results

bench-quick: bench-needs  ## the same with small inputs, a few minutes; figures go to build/bench
	@tools/with_java.sh $(PY) -m benchmarks --quick

# What a part of the benchmarks wants: the oldest Spark beside a broker, Sail, and an S3 server, as the tests build it.
bench-needs: kernels
	@if command -v mvn >/dev/null; then .ci/spark_env; fi
	@.ci/engines_env
	@if command -v go >/dev/null; then $(PY) -c 'from tests.servers import VERSITYGW, go_program; go_program(VERSITYGW)'; fi

lint: $(STAMP)  ## ruff and mypy --strict, tests too
	@status=0; \
	$(VENV)/bin/ruff check . || status=1; \
	$(VENV)/bin/ruff format --check . || status=1; \
	$(VENV)/bin/mypy || status=1; \
	exit $$status

format: $(STAMP)  ## let ruff rewrite what it can
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

docs: $(STAMP)  ## renew the tables of options and build the site into build/site
	@$(PY) -m tools.update_docs
	@$(VENV)/bin/zensical build --strict --clean
	@$(PY) -m tools.finish_site

notebooks: kernels  ## run the notebooks and keep what they show
	@tools/with_java.sh $(PY) -m tools.run_notebooks

WHEEL_TARGETS ?= linux-x86_64 linux-aarch64 macos-arm64 macos-x86_64

wheel: kernels  ## build the wheels of all platforms, the sdist and their checksums into dist/
	@rm -rf dist
	@for target in $(WHEEL_TARGETS); do \
	  KTS_WHEEL_TARGET=$$target $(VENV)/bin/uv build --quiet --wheel --out-dir dist . || exit 1; \
	done
	@$(VENV)/bin/uv build --quiet --sdist --out-dir dist .
	@cd dist && rm -f .gitignore && sha256sum -- * >SHA256SUMS && cat SHA256SUMS

lock: $(STAMP)  ## resolve requirements.lock anew
	@$(PY) -m pip install --quiet --disable-pip-version-check "uv==$(UV_VERSION)"
	@$(VENV)/bin/uv pip compile --quiet pyproject.toml --universal $(LOCKED_EXTRAS) --group dev \
	  --generate-hashes --no-emit-index-url --python-version 3.11 --upgrade -o requirements.lock

clean:  ## remove .venv and caches
	rm -rf $(VENV) $(DEMO_VENV) .venv-spark4? .venv-engines .venv-lowest .venv-python313 .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist segment_format/kernels/kernels.so
