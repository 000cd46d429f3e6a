"""The agent loop: a model, its tools, and the record of the conversation.

May import ``rollout.run_files`` and what stands before it in ``tests/unit/test_folders.py``.
"""
