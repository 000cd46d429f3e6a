"""Choose the adapter of a contract: the one place that knows them all."""

from __future__ import annotations

from hyperruntime.loop.generation.adapter import ContractAdapter
from hyperruntime.loop.generation.default_adapter import DefaultContract
from hyperruntime.loop.hyperagents.adapter import HyperAgentsContract


def contract_adapter(kind: str | None) -> ContractAdapter:
    """Return what a kind of contract decides.

    Args:
        kind: one of :data:`~hyperruntime.loop.run_files.contract.KINDS`; None is the default contract.
    """
    return HyperAgentsContract() if kind == "hyperagents" else DefaultContract()
