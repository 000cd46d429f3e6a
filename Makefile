# The main commands are `make demo` and `make test`; each does its own set-up. `make help` lists all commands.

SHELL := /bin/bash
# Some container images set it; then each Python process of the tests compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help demo test test-engines test-all test-weather test-sites test-gpu bench bench-slots bench-cluster bench-frameworks bench-report docs docs-pictures newcomer setup clean

# Options of the command: make demo ARGS="--seed 3", make test ARGS="-k session"
ARGS ?=

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## watch agents improve, in fresh containers, offline
	@scripts/setup run
	@.venv/bin/hyperrun demo $(ARGS)

test: ## before a commit: lint, types, unit tests, conformance and smoke tests on the best engine; 5 minutes on 2 cores
	@scripts/setup test
	@scripts/test $(ARGS)

test-engines: ## the other tests that are not marked slow, on all engines; as root also as an ordinary user
	@scripts/setup all
	@scripts/test --engines

test-all: ## everything, on all engines, and the weather; it says how long it took
	@scripts/setup all
	@scripts/test --all

test-weather: ## selfcheck on the rootless engines under the conditions of cluster jobs; ARGS="rss-2gib podman" for one
	@scripts/setup all
	@scripts/weather $(ARGS)

test-sites: ## use it on the systems of sites (Debian 13, unstable, one id, ...), and write docs/sites.md; ARGS="one-uid" for one
	@scripts/sites $(ARGS)

test-gpu: ## check a machine with one NVIDIA GPU in ten minutes; ARGS=--cpu checks the check itself, without one
	@scripts/gpu $(ARGS)

bench: ## compare with the engine's own commands, and write docs/benchmarks.md
	@scripts/setup all
	@scripts/bench core $(ARGS)

bench-slots: ## measure slots and rollouts, and write docs/benchmarks-slots.md
	@scripts/setup all
	@scripts/bench slots $(ARGS)

bench-cluster: ## measure many nodes, as root and on a Slurm that it starts, and write docs/benchmarks-cluster.md
	@scripts/setup all
	@scripts/bench cluster

bench-frameworks: ## measure integrations beside the frameworks' own Docker sandboxes; write docs/benchmarks-frameworks.md
	@scripts/setup all
	@scripts/bench frameworks $(ARGS)

bench-report: ## measure the page about a run in Chromium, and the cost of 100 viewers of a live one
	@scripts/setup all
	@.venv/bin/python -m tests.bench.report
	@.venv/bin/python -m tests.bench.live

docs-pictures: ## draw docs/pictures again: the report, the live page, and the first page of the site, which it builds
	@scripts/setup all
	@scripts/docs-pictures $(ARGS)

docs: ## build the documentation as a site in build/docs, and check its links
	@scripts/docs $(ARGS)

newcomer: ## follow the first two tutorials in a fresh clone, and print how long each step takes
	@scripts/setup all
	@.venv/bin/python -m tests.bench.newcomer

setup: ## only install what the other commands need
	@scripts/setup all

clean: ## remove build results (but not outputs/, images or the test user)
	rm -rf .venv build dist ./*.egg-info .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
