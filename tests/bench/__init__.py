"""Benchmarks (`make bench`, or `python -m tests.bench`); each figure has a comparison beside it."""
