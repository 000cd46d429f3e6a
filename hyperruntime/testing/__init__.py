"""Doubles for tests, and the conformance suite that every driver must pass (:mod:`hyperruntime.testing.conformance`).

Two doubles of an engine: :class:`FakeRuntime` isolates nothing and is for tests of the loop; :class:`FakeDriver` is a
whole driver without an engine, on the namespaces of the host's own kernel.

May import ``adapters`` and what stands before it in ``tests/unit/test_folders.py``.
"""

from hyperruntime.testing.driver import FakeDriver
from hyperruntime.testing.fake import FakeContainer, FakeImages, FakeRuntime, make_agent_repository

__all__ = ["FakeContainer", "FakeDriver", "FakeImages", "FakeRuntime", "make_agent_repository"]
