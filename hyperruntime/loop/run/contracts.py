"""Choose the adapter for an agent's contract, and load the domains of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hyperruntime.datasets.left_out import FAIL, shown, warn_left_out
from hyperruntime.domain import DomainBase
from hyperruntime.errors import SpecError
from hyperruntime.loop.generation.adapter import ContractAdapter
from hyperruntime.loop.generation.default_adapter import DefaultContract
from hyperruntime.loop.hyperagents.adapter import HyperAgentsContract
from hyperruntime.loop.run_files.contract import HYPERAGENTS, detect_contract

_DOMAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def contract_adapter(kind: str | None) -> ContractAdapter:
    """Return the adapter for a kind of contract.

    Args:
        kind: one of :data:`~hyperruntime.loop.run_files.contract.KINDS`; None: the default
            contract.
    """
    return HyperAgentsContract() if kind == HYPERAGENTS else DefaultContract()


def agent_here() -> str | None:
    """Return ``"."`` if the working directory is an agent whose contract runs it in its own
    checkout, else None.

    Raises:
        AgentError: the ``hyperrun.toml`` of the working directory is invalid.
    """
    return "." if contract_adapter(detect_contract(".")).runs_in_checkout else None


def load_domains(
    names: Sequence[str], adapter: ContractAdapter, *, code: bool = False
) -> tuple[DomainBase, ...]:
    """Return the domains with these references.

    Args:
        names: the references, ``NAME``, ``NAME:ARGUMENT`` or ``FILE.py:CLASS``.
        adapter: loads the domains.
        code: whether this user named or accepted them, so that a file of code may be loaded. A run
            directory and an agent's file may not name one.

    Raises:
        DomainNotFoundError: a domain does not exist.
        DriverLoadError: a domain cannot be loaded.
        SpecError: a name is invalid or duplicated.
    """
    domains = adapter.load_domains(names, code=code)
    known: set[str] = set()
    for domain in domains:
        if not _DOMAIN_NAME.fullmatch(domain.name) or domain.name in known:
            raise SpecError(
                "domains", domain.name, "unique names of letters, digits, '.', '_' and '-'"
            )
        known.add(domain.name)
    return domains


def check_left_out(domains: Sequence[DomainBase], unsupported: str) -> None:
    """Log what the domains leave out of their data sets, or refuse it.

    Args:
        domains: the domains.
        unsupported: ``skip``, or ``fail``, which refuses a data set with an odd row.

    Raises:
        SpecError: a data set has no valid row; or it has an odd one, and ``unsupported`` is
            ``fail``.
    """
    for domain in domains:
        left = domain.left_out
        if left and unsupported == FAIL:
            raise SpecError("domains", domain.name, f"a data set without odd rows; {shown(left)}")
        warn_left_out(left, "--unsupported fail", domain=domain.name)
