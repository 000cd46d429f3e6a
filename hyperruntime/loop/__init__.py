"""The generate loop: agents that change themselves, generation after generation, in containers.

May import ``loop.run`` and what stands before it in ``tests/unit/test_folders.py``.
"""
