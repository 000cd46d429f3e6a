"""Benchmarks: `make bench`, or `python -m tests.bench`; every figure stands beside what it is compared to."""
