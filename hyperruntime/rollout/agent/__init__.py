"""The agent loop: a model, the tools it may call, and what is recorded of the conversation.

May import ``rollout.run_files`` and what stands before it in ``tests/unit/test_folders.py``.
"""
