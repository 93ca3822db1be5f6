# One command for each thing: `make check` is what must pass before a change lands.
# Needs python3 (3.11 or newer) and, for Spark, Java 17 or newer. Uses uv when it is on the PATH.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo demo-redis test check postgres redis-soak bench peers site lock versions clean FORCE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := $(shell sed -n 's/^"elasticscan[.a-z]*" = "\(.*\)"$$/\1/p' pyproject.toml)
SOURCES := $(sort $(shell find $(PACKAGES) -name '*.py' -o -name py.typed) pyspark_elasticscan.py)
UV := $(shell command -v uv 2>/dev/null)

ifdef UV
CREATE_VENV = uv venv --quiet --clear --python "$(PYTHON)" $(VENV)
INSTALL = uv pip install --quiet --compile-bytecode --python $(BIN)/python
FORCED = --reinstall
else
CREATE_VENV = "$(PYTHON)" -m venv --clear $(VENV)
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
FORCED = --force-reinstall
endif

help:  ## say what the targets do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

venv: $(VENV)/installed  ## create .venv with the pinned packages and elasticscan itself

demo: java $(VENV)/installed  ## scan a store while its tablets move, with Spark: ARGUMENTS="--page 8765"
	$(BIN)/python examples/demo.py $(ARGUMENTS)

demo-redis: java $(VENV)/installed  ## the same of a Redis cluster that is resharded (needs redis-server and redis-cli)
	$(BIN)/python -m examples.redis_demo $(ARGUMENTS)

test: java $(VENV)/installed  ## run the tests that a change needs at once, some minutes
	$(BIN)/python -m pytest -n 3 -m 'not long'

check: java $(VENV)/installed  ## format, lint, strict types, layers, then all tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	ELASTICSCAN_THOROUGH=1 $(BIN)/python -m pytest -n 3

# Tests of what holds whatever the catalog is in; others copy, remove or damage its file, or turn its clock.
STORES = $(patsubst %,tests/store/test_%.py,column_changes index_changes status \
	table) \
	tests/store/context/test_leases.py \
	$(patsubst %,tests/store/reading/test_%.py,changes rows_by_key) \
	$(patsubst %,tests/store/writing/test_%.py,publishing transactions)
CONNECTORS = $(patsubst %,tests/connector/test_%.py,reading stream_writing streaming transcripts_of_spark writing)

postgres: java $(VENV)/installed  ## run tests of stores again, with their catalogs at a PostgreSQL server
	ELASTICSCAN_TESTS_CATALOG=postgresql $(BIN)/python -m pytest -n 3 -m 'not long' $(STORES) $(CONNECTORS) \
		-k 'not a_repair_has_the_columns'

redis-soak: java $(VENV)/installed  ## 180 scans of Redis and Valkey clusters that are resharded, with killed masters
	ELASTICSCAN_REDIS_SCANS=60 CI=1 $(BIN)/python -m pytest -s tests/backends/redis -k soak

bench: java $(VENV)/installed  ## run the benchmarks: ARGUMENTS="--only sql,promise"
	$(BIN)/python benchmarks/run.py $(ARGUMENTS)

peers:  ## the same work by PostgreSQL, DuckDB, Delta, Iceberg, Lance and Redis, into .peers/: ARGUMENTS="--rows 10000000"
	$(MAKE) VENV=.venv-peers MORE=benchmarks/peers.txt .venv-peers/installed
	.venv-peers/bin/python benchmarks/peers.py --into .peers $(ARGUMENTS)

site:  ## build the site of README, docs/ and docstrings into .site; a broken link is an error
	$(MAKE) VENV=.venv-site MORE=docs/site.txt .venv-site/installed
	.venv-site/bin/sphinx-build -W --keep-going -q -c docs -b html . .site
	@cp .site/README.html .site/index.html
	@echo ".site/index.html"

versions:  ## try Python 3.11 to 3.13, each with the lowest and the newest packages
	"$(PYTHON)" scripts/versions.py .venv-versions

clean:  ## remove everything that the other targets made
	rm -rf $(VENV) .venv-lock .venv-peers .peers .venv-site .site .venv-versions build dist elasticscan.egg-info .mypy_cache .ruff_cache .pytest_cache \
		.import_linter_cache .hypothesis spark-warehouse metastore_db derby.log
	find $(PACKAGES) examples tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# ------------------------------------------------------------------------------- how it is built

.PHONY: java
java:
	@sh scripts/check-java.sh

# Every package, at the version and with the hash that requirements.txt names; MORE is another such file.
$(VENV)/stamp: requirements.txt $(MORE)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "elasticscan needs Python 3.11 or newer, and $(PYTHON) is not." >&2; \
		echo "Install one, or name it: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(CREATE_VENV)
	$(INSTALL) --require-hashes -r requirements.txt $(MORE:%=-r %)
	@touch $@

# A list of the sources that changes only when a file comes or goes: a module that was deleted must
# leave the installation too, and no timestamp of the remaining ones would tell.
$(VENV)/sources: $(VENV)/stamp FORCE
	@echo '$(SOURCES)' | cmp -s - $@ || echo '$(SOURCES)' > $@

# Not an editable installation: Spark's look-up of sources sees only modules that really lie on the
# path. build/ is removed before and after, since setuptools would install stale files from it.
$(VENV)/installed: $(VENV)/stamp $(VENV)/sources pyproject.toml README.md LICENSE $(SOURCES)
	@rm -rf build elasticscan.egg-info
	$(INSTALL) --no-deps --no-build-isolation $(FORCED) .
	@rm -rf build elasticscan.egg-info
	@touch $@

PINNED = --quiet --generate-hashes --allow-unsafe --strip-extras --no-header --no-annotate --no-emit-index-url \
	--no-emit-find-links --no-emit-trusted-host --no-emit-options

lock:  ## pin the newest allowed packages again in requirements.txt
	"$(PYTHON)" -m venv --clear .venv-lock
	.venv-lock/bin/python -m pip install --quiet pip-tools
	.venv-lock/bin/pip-compile $(PINNED) --upgrade --extra cli --extra dev --extra postgres --extra redis --extra s3 \
		--extra spark --extra sql --output-file .venv-lock/requirements.txt pyproject.toml
	{ sed -n '/^#/!q;p' requirements.txt; grep -v -e '^#' -e '^$$' .venv-lock/requirements.txt; } > .venv-lock/new
	mv .venv-lock/new requirements.txt
	.venv-lock/bin/pip-compile $(PINNED) --upgrade --constraint requirements.txt \
		--output-file .venv-lock/peers.txt benchmarks/peers.in
	{ sed -n '/^#/!q;p' benchmarks/peers.txt; grep -v -e '^#' -e '^$$' .venv-lock/peers.txt; } > .venv-lock/new
	mv .venv-lock/new benchmarks/peers.txt
	.venv-lock/bin/pip-compile $(PINNED) --upgrade --constraint requirements.txt \
		--output-file .venv-lock/site.txt docs/site.in
	{ sed -n '/^#/!q;p' docs/site.txt; grep -v -e '^#' -e '^$$' .venv-lock/site.txt; } > .venv-lock/new
	mv .venv-lock/new docs/site.txt
	rm -rf .venv-lock build elasticscan.egg-info
