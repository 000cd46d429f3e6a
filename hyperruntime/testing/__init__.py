"""Test doubles, and the conformance suite that every driver must pass
(:mod:`hyperruntime.testing.conformance`).

Two doubles replace an engine: :class:`FakeRuntime` isolates nothing and is for tests of the loop;
:class:`FakeDriver` is a complete driver without an engine, based on Linux namespaces.
"""

from hyperruntime.testing.driver import FakeDriver
from hyperruntime.testing.fake import FakeContainer, FakeImages, FakeRuntime, make_agent_repository

__all__ = ["FakeContainer", "FakeDriver", "FakeImages", "FakeRuntime", "make_agent_repository"]
