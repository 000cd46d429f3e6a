"""Benchmarks: `make bench`, or `python -m tests.bench`. Every figure stands beside what it is compared to, in one run."""
