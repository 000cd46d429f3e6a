# The two commands are `make demo` and `make test`; each does all of its own set-up. `make help` lists the rest.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test test-weather bench bench-slots setup clean

# Options for what is run: make demo ARGS="--seed 3", make test ARGS="-k session"
ARGS ?=

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## watch agents improve, in fresh containers, offline
	@scripts/setup run
	@.venv/bin/hyperrun demo $(ARGS)

test: ## lint, types and all tests; as root also the engine's tests as an ordinary user
	@scripts/setup test
	@scripts/test $(ARGS)

test-weather: ## selfcheck on the rootless engines under what a cluster's job may bring; ARGS="rss-2gib podman" for one
	@scripts/setup test
	@scripts/weather $(ARGS)

bench: ## measure against the engine's own commands, side by side, and write docs/benchmarks.md
	@scripts/setup test
	@scripts/bench core $(ARGS)

bench-slots: ## the same of slots and rollouts, into docs/benchmarks-slots.md
	@scripts/setup test
	@scripts/bench slots $(ARGS)

setup: ## install what the others need, and nothing else
	@scripts/setup test

clean: ## remove what was built here (not outputs/, not images, not the test user)
	rm -rf .venv build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
