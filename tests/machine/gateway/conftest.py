"""Fixtures of the gateway's tests."""

from tests.unit.gateway.conftest import start

__all__ = ["start"]
