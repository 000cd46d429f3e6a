"""The LLM gateway: gives models to containers that have no network and hold no keys.

The host runs a server on a Unix socket in the container's exchange directory. A forwarder in the container offers it
as ``http://127.0.0.1:PORT``. Importing this package loads no HTTP library: a gateway loads it when it starts.
Design: docs/decisions/0015-gateway.md.

May import ``gateway.answer`` and what stands before it in ``tests/unit/test_folders.py``.
"""

from __future__ import annotations

from hyperruntime.gateway.attach import Access
from hyperruntime.gateway.config.values import Budget, ClientLimits, GatewayConfig, ModelRule, Upstream
from hyperruntime.gateway.gateway import Gateway, Seat
from hyperruntime.gateway.log.budget import Spent

__all__ = [
    "Access",
    "Budget",
    "ClientLimits",
    "Gateway",
    "GatewayConfig",
    "ModelRule",
    "Seat",
    "Spent",
    "Upstream",
]
