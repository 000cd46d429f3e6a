"""The conformance suite that every driver must pass (:mod:`hyperruntime.testing.conformance`), and
doubles: a scripted model server (:mod:`hyperruntime.testing.model`), and :class:`FakeDriver`, a
complete driver without an engine, based on Linux namespaces.
"""

from hyperruntime.testing.driver import FakeDriver

__all__ = ["FakeDriver"]
