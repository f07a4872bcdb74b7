# Two commands do all the set-up: `make demo` and `make test`. Both are quick when nothing is missing.
SHELL := /bin/bash
export DEBIAN_FRONTEND := noninteractive
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UV := 0.13.9
HARNESSES := pi pi-frozen claude-code codex qwen-code gemini-cli opencode mini-swe-agent
PYTEST = $(BIN)/python -m pytest --numprocesses logical --maxprocesses 4
UV_INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps

# The first interpreter of at least 3.12 that really runs: a pyenv shim can exist and still refuse.
PYTHON ?= $(shell for python in python3.12 python3.13 python3.14 python3 \
	$$(ls -d "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python 2>/dev/null); do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && { echo "$$python"; break; }; done)

.PHONY: help
help: ## these lines
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

.PHONY: demo
demo: setup ## all set-up, then a real harness on a local model: `polar demo`
	@$(BIN)/polar demo

.PHONY: test
test: setup ## all set-up, then linters and every test, the live ones on a real engine and real harnesses
	@$(MAKE) --no-print-directory container-tools
	@$(BIN)/polar harness install $(HARNESSES)
	@$(BIN)/polar model install tiny
	@$(BIN)/polar evaluator install swebench
	@$(BIN)/python -m tests.loaders.environments
	@$(MAKE) --no-print-directory browser postgres lint
	$(PYTEST) $(TESTS)

.PHONY: test-fast
test-fast: $(READY) postgres ## the tests that need no engine, harness, sandbox or browser
	$(PYTEST) -m "not live and not browser" $(TESTS)

.PHONY: lint
lint: $(READY) ## ruff, mypy, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: schemas
schemas: $(READY) ## write docs/schemas from the models, docs/providers.md from the providers' tables
	@$(BIN)/python -m polar_mitm.capture.schema docs/schemas
	@$(BIN)/python -m polar_mitm.trajectory.schema docs/schemas
	@$(BIN)/python -m polar_mitm.tasks.schema docs/schemas
	@$(BIN)/python -m polar_mitm.providers.fates docs/providers.md

.PHONY: loaders
loaders: $(READY) ## the environments of the programs that read exported files, for the tests (about 1 GB)
	@$(BIN)/python -m tests.loaders.environments

# Linux x64 only. Not part of CI: it fetches a harness from npm, and its output is committed.
.PHONY: wire
wire: $(READY) ## record what a real harness sends: make wire HARNESS=pi
	@$(BIN)/python -m tests.wire.record $(HARNESS)

.PHONY: live-matrix
live-matrix: setup ## every harness x mode x sandbox on a real engine; write the table in docs/harnesses.md: make live-matrix ARGS=--missing
	@$(BIN)/polar harness install $(HARNESSES)
	@$(BIN)/python -m tests.live.matrix $(ARGS)

.PHONY: live-kinds
live-kinds: setup ## sub-agents and compactions of every harness on a real engine; write the table in docs/harnesses.md
	@$(BIN)/polar harness install $(HARNESSES)
	@$(BIN)/python -m tests.live.kinds $(ARGS)

.PHONY: bench-keepalive
bench-keepalive: $(READY) ## hold a stream of each provider open for a minute and measure its longest silence
	@$(BIN)/python -m bench.keepalive 60

.PHONY: bench-keepalive-harnesses
bench-keepalive-harnesses: $(READY) sandbox-tools ## six real harnesses wait 21 minutes for an answer; write the table in docs/proxy.md
	@$(BIN)/polar harness install claude-code codex qwen-code pi gemini-cli opencode
	@$(BIN)/python -m bench.keepalive_harnesses $(ARGS)

.PHONY: live-tokens
live-tokens: $(READY) ## chat and exact prompts in three harnesses; write the table in docs/trajectories.md: make live-tokens URL=...
	@$(BIN)/python -m bench.live_tokens --engine-url $(URL)

.PHONY: chaos
chaos: $(READY) ## 2,000 sessions on a rollout server and three gateways under 200 seeded faults; what was lost or doubled
	@$(BIN)/python -m bench.chaos $(ARGS)

# Not part of CI: Ray is 270 MB, and a cluster of four nodes takes half a minute and 1.6 GB.
.PHONY: ray-show
ray-show: $(READY) ## gateways on a Ray cluster of four nodes: 120 sessions at once, an actor killed, a node removed
	@$(UV_INSTALL:--no-deps=) --compile-bytecode --no-build-isolation --editable '.[rollout,ray]'
	@$(BIN)/python -m bench.ray $(ARGS)

.PHONY: bench-scale
bench-scale: $(READY) ## what a session costs with 100 to 10,000 in line and 256 in flight; write docs/benchmarks.md and the plot
	@$(BIN)/python -m bench.scale $(ARGS)

.PHONY: bench-memory
bench-memory: $(READY) ## whether sessions that are over stay in memory; write a section of docs/benchmarks.md
	@$(BIN)/python -m bench.memory

.PHONY: bench-live
bench-live: $(READY) ## what sessions of real harnesses cost; write docs/figures/live.json: make bench-live URL=...
	@$(BIN)/python -m bench.scaling.live $(URL)

.PHONY: scaling
scaling: $(READY) ## from the figures to 100,000 agents, by arithmetic and simulation; write docs/scaling.md
	@$(BIN)/python -m bench.scaling $(ARGS)

.PHONY: api
api: $(READY) ## schemathesis against the OpenAPI of the rollout server and of a gateway, two minutes each: no 5xx
	@$(BIN)/python -m bench.api $(ARGS)

.PHONY: soak
soak: $(READY) ## 50 sessions at once on a running engine, killed and resumed ten times: make soak URL=http://127.0.0.1:8000
	@$(BIN)/python -m bench.soak --write --engine-url $(URL)

.PHONY: bench-providers
bench-providers: $(READY) ## time reading requests and writing replies by size and count; write docs/benchmarks.md
	@$(BIN)/python -m bench.providers

.PHONY: bench-fuzz
bench-fuzz: $(READY) ## 100,000 malformed requests at the providers, 4,000 at the real proxy
	@$(BIN)/python -m bench.fuzz

.PHONY: bench-trajectory
bench-trajectory: $(READY) ## build sessions of up to 1,000 turns and 1M tokens: time and memory a token, bytes on disk
	@$(BIN)/python -m bench.trajectory

.PHONY: lock
lock: $(READY) ## write requirements.lock anew from pyproject.toml
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.12 --generate-hashes --no-emit-index-url \
		--no-header --no-annotate --extra rollout --group dev pyproject.toml -o requirements.lock

.PHONY: setup
setup: $(READY) sandbox-tools ## all set-up, and nothing else; then: .venv/bin/polar doctor

$(READY): pyproject.toml requirements.lock
	@test -n "$(PYTHON)" || { echo "polar-mitm needs Python 3.12 or newer: none was found on PATH or in pyenv." >&2; exit 3; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV)
	@$(UV_INSTALL) --require-hashes --compile-bytecode -r requirements.lock
	@$(UV_INSTALL) --no-build-isolation --editable .
	@touch $@

# bubblewrap and socat make the default sandbox. They come from the system's packages; where this user may not install
# them, `polar doctor` says so, and `--sandbox host` works without.
.PHONY: sandbox-tools
sandbox-tools:
	@if ! command -v bwrap >/dev/null || ! command -v socat >/dev/null || ! command -v git >/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "Installing bubblewrap, socat and git"; \
			{ apt-get update && apt-get install -y --no-install-recommends bubblewrap socat git; } >/tmp/polar-apt.log 2>&1 \
				|| { tail -5 /tmp/polar-apt.log >&2; exit 3; }; \
		else \
			echo "note: bubblewrap, socat and git are needed for the bwrap sandbox; install them with your package manager" >&2; \
		fi; \
	fi

# The container sandbox is tested with podman, on an image made here. Only root can make it; elsewhere its tests say what
# is missing.
.PHONY: container-tools
container-tools:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		if ! command -v podman >/dev/null || ! command -v debootstrap >/dev/null; then \
			echo "Installing podman and debootstrap"; \
			{ apt-get update && apt-get install -y podman runc fuse-overlayfs debootstrap; } >/tmp/polar-apt.log 2>&1 \
				|| { tail -5 /tmp/polar-apt.log >&2; exit 3; }; \
		fi; \
		$(BIN)/polar sandbox image; \
	fi

# Chromium, for the tests of what a person sees. Only they need it.
.PHONY: browser
browser:
	@if ! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "Installing chromium"; \
			{ apt-get update && apt-get install -y --no-install-recommends chromium fonts-dejavu-core \
				fonts-noto-color-emoji; } >/tmp/polar-apt.log 2>&1 || { tail -5 /tmp/polar-apt.log >&2; exit 3; }; \
		else \
			echo "note: Chromium is needed for the tests of pages; install it with your package manager" >&2; \
		fi; \
	fi

# PostgreSQL's programs, for the tests of the rollout server's store: they start a cluster of their own in a temporary
# folder. The package would start one for the whole machine, which nobody needs.
.PHONY: postgres
postgres:
	@if ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && ! command -v initdb >/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "Installing postgresql"; \
			mkdir -p /etc/postgresql-common; \
			[ -e /etc/postgresql-common/createcluster.conf ] \
				|| echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf; \
			{ apt-get update && apt-get install -y --no-install-recommends -o Dpkg::Options::=--force-confold postgresql; } >/tmp/polar-apt.log 2>&1 \
				|| { tail -5 /tmp/polar-apt.log >&2; exit 3; }; \
		else \
			echo "note: PostgreSQL is needed for the rollout server's tests; install it with your package manager" >&2; \
		fi; \
	fi

.PHONY: screenshots
screenshots: $(READY) browser ## draw the pictures of docs/ anew, as the browser tests see them
	@POLAR_SCREENSHOTS=$(CURDIR)/docs $(BIN)/python -m pytest -q tests/browser

.PHONY: clean
clean: ## remove the environment and the caches of this folder; runs/ and ~/.cache/polar-mitm stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
