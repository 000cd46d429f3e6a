"""The LLM gateway: gives models to containers that have no network and hold no keys.

The host runs a server on a Unix socket in the container's exchange directory. A forwarder in the
container offers it as ``http://127.0.0.1:PORT``. Importing this package loads none of its modules:
its names are imported on first use, and a gateway loads the HTTP library when it starts. Design:
docs/design/models.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hyperruntime.gateway.attach import Access as Access
    from hyperruntime.gateway.config.values import Budget as Budget
    from hyperruntime.gateway.config.values import ClientLimits as ClientLimits
    from hyperruntime.gateway.config.values import GatewayConfig as GatewayConfig
    from hyperruntime.gateway.config.values import ModelRule as ModelRule
    from hyperruntime.gateway.config.values import Upstream as Upstream
    from hyperruntime.gateway.gateway import Gateway as Gateway
    from hyperruntime.gateway.log.budget import Spent as Spent
    from hyperruntime.gateway.seat import Seat as Seat

_NAMES = {
    "attach": ("Access",),
    "config.values": ("Budget", "ClientLimits", "GatewayConfig", "ModelRule", "Upstream"),
    "gateway": ("Gateway",),
    "log.budget": ("Spent",),
    "seat": ("Seat",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = list(_HOMES)

if not TYPE_CHECKING:  # a type checker that sees it accepts every name

    def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
        """Return a public name from the module that holds it."""
        if name not in _HOMES:
            raise AttributeError(f"module 'hyperruntime.gateway' has no attribute {name!r}")
        return getattr(import_module(f"hyperruntime.gateway.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
