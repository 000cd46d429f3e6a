"""One generation: its steps, what they leave behind, and the seam to the contract of its agent.

May import ``loop.evaluation`` and what stands before it in ``tests/unit/test_folders.py``.
"""
