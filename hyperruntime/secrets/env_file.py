"""Read ``.env`` files; the variables in which the clients of models keep keys and addresses."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import attrs

from hyperruntime.errors import GatewayConfigError
from hyperruntime.logs import get_logger
from hyperruntime.storage.run_files import read_run_file
from hyperruntime.units import MIB

log = get_logger(__name__)

_UNKNOWN = ("GEMINI_API_KEY", "GEMINI_API_BASE")


@attrs.frozen
class ModelClients:
    """The environment variables of the clients of one wire format.

    Attributes:
        wire: the name of the format.
        key: name of the variable with the API key.
        urls: names of the variables with the base URL; the first that is set wins.
        url: the base URL if none of them is set.
    """

    wire: str
    key: str
    urls: tuple[str, ...]
    url: str

    def url_name(self, variables: Mapping[str, str]) -> str:
        """Return the name of the variable with the base URL; "" if none is set."""
        return next((name for name in self.urls if name in variables), "")


MODEL_CLIENTS = (
    ModelClients(
        "openai",
        "OPENAI_API_KEY",
        ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        "https://api.openai.com/v1",
    ),
    ModelClients(
        "anthropic",
        "ANTHROPIC_API_KEY",
        ("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL"),
        "https://api.anthropic.com",
    ),
)
KEY_VARIABLES = tuple(clients.key for clients in MODEL_CLIENTS)


def read_dotenv(path: Path) -> dict[str, str]:
    """Return the variables of a ``.env`` file that the gateway uses; empty if the file does not
    exist.

    Raises:
        GatewayConfigError: it is not a regular file, is too large, or cannot be read.
    """
    try:
        found = parse_dotenv(read_run_file(path, below=path.parent, most_bytes=MIB).decode())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or error
        raise GatewayConfigError(f"{path} cannot be read: {why}; correct or remove it") from error
    for name in _UNKNOWN:
        if name in found:
            log.warning(
                "variable of .env ignored: the gateway speaks the formats of OpenAI and Anthropic",
                name=name,
            )
    names = [name for clients in MODEL_CLIENTS for name in (clients.key, *clients.urls)]
    return {name: found[name] for name in names if found.get(name)}


def parse_dotenv(text: str) -> dict[str, str]:
    """Return the variables that the text of a ``.env`` file sets, as python-dotenv reads it; the
    last value wins.

    Variable references in values are not expanded. A name without ``=`` sets nothing; invalid lines
    are logged and skipped.
    """
    from dotenv import dotenv_values

    found = dotenv_values(stream=io.StringIO(text), interpolate=False)
    return {name: value for name, value in found.items() if value is not None}
