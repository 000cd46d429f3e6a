"""A small real trainer: a policy, the server that it speaks through, and GRPO. Design: docs/decisions/0028-training.md.

The one package that imports torch (extra ``train``); modules that do not need it, this one among them, do not.
"""
