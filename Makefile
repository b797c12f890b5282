# Everything a contributor runs. `make help` lists it.

PYTHON ?= python3
PYTEST_ARGS ?=
# Tests wait more than they compute: a box starting, a command sleeping, a timeout.
JOBS ?= 4
# Of `make serve`; by itself 8000.
PORT ?=
# Rounds of `make chaos`.
N ?= 20
# Of `make soak`.
MINUTES ?= 5
RUNTIME ?= bubblewrap
# Of `make test-all`: 3/8 is the third of eight parts.
SLICE ?=
# Of `make breaks`: some of tests/breaks, without `.patch`.
NAMES ?=
# Of `make test-cluster`.
PODS ?= kubernetes,kubernetes_gvisor
BIN := .venv/bin
STAMP := .venv/.installed
SERVES := .venv/.serves

# Where it is set, every process of a test run would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup serve image console pictures test test-all cluster test-cluster docs docs-check check chaos hostile breaks soak bench clean

help: ## list these targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with everything in it (the other targets do so by themselves)

$(STAMP): pyproject.toml constraints.txt scripts/venv.sh scripts/progress.sh
	@PYTHON=$(PYTHON) scripts/venv.sh dev
	@touch $@ $(SERVES)

# Who only wants a server does not wait for the tools of contributors.
$(SERVES): pyproject.toml constraints.txt scripts/venv.sh scripts/progress.sh
	@PYTHON=$(PYTHON) scripts/venv.sh server
	@touch $@

serve: $(SERVES) ## run the server; PORT=9000
	@$(BIN)/sandbox serve $(if $(PORT),--port $(PORT))

image: $(SERVES) ## build the image of Docker boxes
	@$(BIN)/sandbox image build

web/node_modules/.package-lock.json: web/package-lock.json
	@cd web && npm ci && touch node_modules/.package-lock.json

console: web/node_modules/.package-lock.json ## build the console in the browser from web/
	@cd web && npm run --silent check && npm run --silent build

pictures: $(STAMP) ## take the pictures of the console in docs/images
	@SANDBOX_TEST_PICTURES=$(CURDIR)/docs/images scripts/engine.sh run \
		$(BIN)/python -m pytest tests/console/test_pictures.py $(PYTEST_ARGS)

PYTEST = scripts/engine.sh run scripts/cluster.sh run $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test: $(STAMP) ## run every test once, and more of them where it matters: docs/testing.md; PYTEST_ARGS="-k name -x"
	@SANDBOX_TEST_LANE=main $(PYTEST) --junitxml=build/junit/test.xml $(PYTEST_ARGS)

test-all: $(STAMP) ## run every test on every way and runtime; SLICE=3/8 runs an eighth of what `make test` leaves out
	@SANDBOX_TEST_LANE=$(if $(SLICE),rest,all) SANDBOX_TEST_SLICE=$(SLICE) $(PYTEST) \
		--junitxml=build/junit/test-all$(if $(SLICE),-$(subst /,-of-,$(SLICE))).xml $(PYTEST_ARGS)


docs: $(STAMP) ## write the pages that are made from the code
	@$(BIN)/python scripts/signatures.py
	@$(BIN)/python scripts/cli_reference.py
	@$(BIN)/python scripts/configuration.py
	@$(BIN)/python scripts/manifests.py

docs-check: $(STAMP) ## every setting, option, route, error and flag is documented, and nothing that is not there
	@$(BIN)/python -m pytest tests/docs -q $(PYTEST_ARGS)

check: $(STAMP) ## format, lint, types, import rules and the fast tests
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m pytest tests/unit tests/docs -q -n $(JOBS) $(PYTEST_ARGS)

cluster: ## start a Kubernetes cluster of two nodes for tests; built once, as root on Debian
	@scripts/cluster.sh up
	@scripts/cluster.sh smoke

test-cluster: $(STAMP) ## run everything on pods, with runc and gVisor, of which `make test` does a part
	@scripts/engine.sh run scripts/cluster.sh run env SANDBOX_TEST_RUNTIMES= SANDBOX_TEST_PODS=$(PODS) \
		$(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/kubernetes tests/contract tests/integration \
		tests/hostile -k kubernetes $(PYTEST_ARGS)

chaos: $(STAMP) ## kill servers and their Redis in the middle of their work; N=100 rounds instead of 20
	@CHAOS_ROUNDS=$(N) scripts/engine.sh run $(BIN)/python -m pytest tests/chaos -n 0 $(PYTEST_ARGS)

hostile: $(STAMP) ## run the hostile cases on every runtime, and write the table in docs/security.md
	@scripts/engine.sh run $(BIN)/python -m tests.hostile -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

breaks: $(STAMP) ## break the product on purpose, one promise at a time, and show which test finds it
	@JOBS=$(JOBS) scripts/engine.sh run $(BIN)/python -m tests.breaks $(NAMES)

soak: $(STAMP) ## 200 threads of mixed work against a server; MINUTES=30 RUNTIME=docker
	@scripts/engine.sh run $(BIN)/python -m bench.soak --minutes $(MINUTES) --runtime $(RUNTIME)

bench: $(STAMP) ## run the benchmarks
	@scripts/engine.sh run $(BIN)/python -m bench

clean: ## remove .venv and caches of tools; the image cache stays
	@rm -rf .venv web/node_modules .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
