"""Check what the files of an existing run ask of the host: another user may have made them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import attrs

from hyperruntime.gateway.config.environment import read_dotenv
from hyperruntime.gateway.config.source import RECORD
from hyperruntime.git.user_repository import ENV_FILE
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.model_access import stored_agent
from hyperruntime.option_fields import host_requests
from hyperruntime.storage.own_mark import check_requests


def check_received(
    options: GenerateOptions,
    stored: Mapping[str, Any],
    layout: Layout,
    image: str,
    *,
    given: Collection[tuple[str, ...]] = (),
    trust: bool,
) -> None:
    """Check that a run may use what it asks for: this user made it, gave it again, or accepts it.

    Args:
        options: options of the run, with the changes that the user gave.
        stored: content of its ``run.json``.
        layout: paths of the run.
        image: the image that these options and the agent lead to.
        given: paths of the fields of the options that the user gave.
        trust: whether the user accepts all of it.

    Raises:
        ReceivedRunError: the run asks for something that the user has neither given nor accepted.
        GatewayConfigError: the ``.env`` of the agent cannot be read.
    """
    requests = [*host_requests(attrs.evolve(options, image=image), given), *_variables(options, stored, layout)]
    check_requests(layout.run, stored, requests, trust=trust)


def _variables(options: GenerateOptions, stored: Mapping[str, Any], layout: Layout) -> Iterator[str]:
    """Yield the variables of the ``.env`` that ``run.json`` names by the agent, if the gateway reads it."""
    agent = stored_agent(stored, layout)
    if agent is None or (options.gateway is not None and not options.gateway.startswith(RECORD)):
        return
    if layout.contains(agent / ENV_FILE):  # never used
        return
    if names := read_dotenv(agent / ENV_FILE):
        yield f"{' and '.join(names)} of {str(agent / ENV_FILE)!r}"
