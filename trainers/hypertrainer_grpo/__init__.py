"""A small trainer: a policy, its server, and GRPO. Design: docs/design/rollouts.md#training.

Only this package imports torch (extra ``train``), and only in the modules that need it.
"""
