"""Run an agent's tasks in a container and score the answers on the host.

May import ``loop.workbench`` and what stands before it in ``tests/unit/test_folders.py``.
"""
