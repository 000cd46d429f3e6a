"""Choose the adapter of a contract; only this module knows all adapters."""

from __future__ import annotations

from hyperruntime.loop.generation.adapter import ContractAdapter
from hyperruntime.loop.generation.default_adapter import DefaultContract
from hyperruntime.loop.hyperagents.adapter import HyperAgentsContract


def contract_adapter(kind: str | None) -> ContractAdapter:
    """Return the adapter for a kind of contract.

    Args:
        kind: one of :data:`~hyperruntime.loop.run_files.contract.KINDS`; None: the default contract.
    """
    return HyperAgentsContract() if kind == "hyperagents" else DefaultContract()
