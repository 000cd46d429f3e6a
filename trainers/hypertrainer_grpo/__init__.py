"""A small trainer: a policy, its server, and GRPO. Design: docs/decisions/0028-training.md.

Only this package imports torch (extra ``train``), and only in the modules that need it.
"""
