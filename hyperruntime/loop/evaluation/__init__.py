"""Ask an agent for its answers inside a container, and score them on the host.

May import ``loop.workbench`` and what stands before it in ``tests/unit/test_folders.py``.
"""
