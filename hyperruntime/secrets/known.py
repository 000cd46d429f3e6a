"""The secrets that this process knows, and what looks like one; texts and values without them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hyperruntime.errors import GatewayConfigError
from hyperruntime.secrets.env_file import KEY_VARIABLES, read_dotenv
from hyperruntime.secrets.redact import MARK, Redactor

# The name of a variable or option whose value is secret.
SECRET_NAME = re.compile(
    r"api.?key|(?:^|[_.-])keys?(?:$|[_.-])|token(?!s|iz|_id)|secret|passw|passphrase|credential|cookie|authorization|bearer"
    r"|(?:^|[_.-])(?:auth|pat|pwd|dsn)(?:$|[_.-])"
    r"|pass(?:$|[_.-](?!at_))|creds?(?:$|[_.-])|(?-i:[a-z]Key(?![a-z]))",  # pass_at_1 is a score
    re.IGNORECASE,
)
DIRECTORIES = ("PWD", "OLDPWD")  # variables of every shell, not passwords
# characters of a value that is secret by its name: a shorter one may be a word of any text
_LEAST = 8
# Prefixes that services document for their keys, and private keys in PEM.
_LOOKS_LIKE_A_KEY = re.compile(
    r"""
    (?:\b|(?<=\\[nrt"])) (?:  # also after a line break that is written as an escape
        (?:sk|pk|rk)-[A-Za-z0-9_-]{16,}
        | sk_(?:live|test)_[A-Za-z0-9]{16,}
        | hf_[A-Za-z0-9]{20,}
        | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_[A-Za-z0-9_]{20,}
        | glpat-[A-Za-z0-9_-]{16,}
        | AKIA[0-9A-Z]{16}\b
        | AIza[A-Za-z0-9_-]{30,}
        | xox[abprs]-[A-Za-z0-9-]{10,}
        | npm_[A-Za-z0-9]{30,} | pypi-[A-Za-z0-9_-]{30,}
    )
    | (?<=Bearer\ )[A-Za-z0-9._~+/=-]{16,}
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    """,
    re.VERBOSE | re.DOTALL,
)


class Secrets:
    """Knows secrets, and removes them from texts and values."""

    def __init__(
        self, environment: Mapping[str, str] | None = None, env_file: Path = Path(".env")
    ) -> None:
        """Know the keys of the environment and of a ``.env`` file, by the names of the variables.

        Args:
            environment: variables; None means those of this process.
            env_file: the file, which need not exist.
        """
        known = dict(os.environ if environment is None else environment)
        try:
            known |= read_dotenv(env_file)
        except GatewayConfigError:
            pass  # the keys of an unreadable file are unknown
        self._redactor = Redactor(value for name, value in known.items() if _is_secret(name, value))

    def learn(self, secret: str) -> None:
        """Remove a text from now on; one of fewer than 6 characters is too short to be searched."""
        for text in {secret, secret.strip()}:
            self._redactor.add(text)

    def holds(self, data: bytes) -> bool:
        """Return whether bytes still contain a known secret."""
        return self._redactor.clean(data) != data

    def text(self, text: str) -> str:
        """Return a text without keys."""
        return _LOOKS_LIKE_A_KEY.sub(MARK, self._redactor.clean_text(text))

    def value(self, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        """Return a JSON value without keys in its texts; what is not JSON becomes text."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(name)): self.value(entry) for name, entry in value.items()}
        if isinstance(value, Sequence):
            return [self.value(entry) for entry in value]
        return (
            value
            if value is None or isinstance(value, bool | int | float)
            else self.text(str(value))
        )


def _is_secret(name: str, value: str) -> bool:
    if name in KEY_VARIABLES:
        return value != ""
    return len(value) >= _LEAST and name not in DIRECTORIES and SECRET_NAME.search(name) is not None
