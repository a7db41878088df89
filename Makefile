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
# What `make test` leaves to the slower suites of .ci/run.
UNIT := not (integration or slow or notebook or faults or kills or fuzz or engines)
PYTEST_ARGS ?=
# How much of a whole `make soak`, on how many processes.
SHARE ?= 1
JOBS ?= 2

.PHONY: help venv demo test soak bench bench-quick bench-needs lint format docs notebooks lock clean

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

venv: $(STAMP)  ## create .venv from the lock file

demo: $(STAMP)  ## read the sample tier with Spark and print real rows
	@tools/with_java.sh $(PY) -m kts_source.cli demo

test: $(STAMP)  ## the tests (no network beyond the package registries, no broker)
	@tools/with_java.sh $(PY) -m pytest -n 3 --dist loadgroup -m "$(UNIT)" $(PYTEST_ARGS)

soak: $(STAMP)  ## bad inputs, random histories and failing stores; the result goes to benchmarks/SOAK.md
	@$(PY) -m tools.soak --share $(SHARE) --jobs $(JOBS)

bench: bench-needs  ## everything measured, with peers, in one run; renews benchmarks/RESULTS.md
	@tools/with_java.sh $(PY) -m benchmarks --results

bench-quick: bench-needs  ## the same with small inputs, a few minutes; figures go to build/bench
	@tools/with_java.sh $(PY) -m benchmarks --quick

# What a part of the benchmarks wants: the oldest Spark beside a broker, Sail, and an S3 server, as the tests build it.
bench-needs: $(STAMP)
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
	@$(PY) tools/update_docs.py
	@$(VENV)/bin/zensical build --strict --clean
	@$(PY) -m tools.finish_site

notebooks: $(STAMP)  ## run the notebooks and keep what they show
	@tools/with_java.sh $(PY) -m tools.run_notebooks

lock: $(STAMP)  ## resolve requirements.lock anew
	@$(PY) -m pip install --quiet --disable-pip-version-check "uv==$(UV_VERSION)"
	@$(VENV)/bin/uv pip compile --quiet pyproject.toml --universal $(LOCKED_EXTRAS) --group dev \
	  --generate-hashes --no-emit-index-url --python-version 3.11 --upgrade -o requirements.lock

clean:  ## remove .venv and caches
	rm -rf $(VENV) .venv-spark4? .venv-engines .venv-lowest .venv-python313 .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
