"""The wire formats of the gateway: one module with a record for each, and one table of them.

A format that is added here also needs the variables of its clients in ``MODEL_CLIENTS`` of
``hyperruntime/secrets/env_file.py``, so that its keys are withheld from jobs.
"""

from __future__ import annotations

from collections.abc import Mapping

from hyperruntime.gateway.formats.anthropic import ANTHROPIC
from hyperruntime.gateway.formats.openai import OPENAI
from hyperruntime.gateway.formats.record import Endpoint, WireFormat

FORMATS: Mapping[str, WireFormat] = {one.name: one for one in (OPENAI, ANTHROPIC)}
WIRES = tuple(FORMATS)
ENDPOINTS: Mapping[str, Endpoint] = {
    endpoint.path: endpoint for one in FORMATS.values() for endpoint in one.endpoints
}
_OF_PATH = {endpoint.path: one for one in FORMATS.values() for endpoint in one.endpoints}


def format_of(path: str) -> WireFormat:
    """Return the format of an endpoint; of an unknown path the first one."""
    return _OF_PATH.get(path, OPENAI)
