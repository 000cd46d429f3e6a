"""Check what the files of an existing run ask of the host: another user may have made them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.domain import DomainBase
from hyperruntime.errors import RunError
from hyperruntime.gateway.config.source import RECORD
from hyperruntime.git.user_repository import ENV_FILE
from hyperruntime.loop.run.contracts import contract_adapter, load_domains
from hyperruntime.loop.run_files.archive import RunView, read_run
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.model_access import stored_agent
from hyperruntime.option_fields import host_requests, names_no_code
from hyperruntime.runs.own_mark import check_requests, has_own_mark, how_to_accept
from hyperruntime.secrets.env_file import read_dotenv


def check_received(
    options: GenerateOptions,
    stored: Mapping[str, Any],
    layout: Layout,
    image: str | None,
    *,
    given: Collection[tuple[str, ...]] = (),
    trust: bool,
) -> None:
    """Check that a run may use what it asks for: this user made it, gave it again, or accepts it.

    Args:
        options: options of the run, with the changes that the user gave.
        stored: content of its ``run.json``.
        layout: paths of the run.
        image: the image that these options and the agent lead to; None if it is not known yet.
        given: paths of the fields of the options that the user gave.
        trust: whether the user accepts all of it.

    Raises:
        ReceivedRunError: the run asks for something that the user has neither given nor accepted.
        GatewayConfigError: the ``.env`` of the agent cannot be read.
    """
    requests = [
        *host_requests(attrs.evolve(options, image=image), given),
        *_variables(options, stored, layout),
    ]
    check_requests(layout.run, stored, requests, trust=trust)


def domains_to_show(view: RunView) -> tuple[DomainBase, ...]:
    """Return the domains of a run that is only shown, where no user is asked.

    Raises:
        RunError: a domain has an argument, and this user neither made nor accepted the run.
        HyperRuntimeError: a domain cannot be loaded, or ``run.json`` cannot be read.
    """
    options = view.options
    if not names_no_code(options.domains):
        layout = Layout(Path(view.run_dir))
        options, stored = read_run(layout)
        if not has_own_mark(stored, layout.root):
            named = ", ".join(name for name in options.domains if not names_no_code(name))
            raise RunError(
                f"the run was made elsewhere, and the argument of {named!r} may name any file "
                f"of this machine; {how_to_accept('resume', layout.root)}"
            )
    return load_domains(options.domains, contract_adapter(options.contract), code=True)


def _variables(
    options: GenerateOptions, stored: Mapping[str, Any], layout: Layout
) -> Iterator[str]:
    """Yield the variables of the ``.env`` that ``run.json`` names by the agent, if the gateway
    reads it.
    """
    agent = stored_agent(stored, layout)
    if agent is None or (options.gateway is not None and not options.gateway.startswith(RECORD)):
        return
    if layout.contains(agent / ENV_FILE):  # never used
        return
    if names := read_dotenv(agent / ENV_FILE):
        yield f"{' and '.join(names)} of {str(agent / ENV_FILE)!r}"
