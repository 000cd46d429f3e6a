"""Find the keys and passwords that a bug report must not contain, and remove them from its texts
and values.

A value is secret by its name (``*_TOKEN``, ``api_key``), by its place (a ``.env`` file, the key
file of a model server, a table of environment variables), or by its look (the prefixes that
services give their keys).
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hyperruntime.secrets.env_file import parse_dotenv
from hyperruntime.secrets.known import DIRECTORIES, SECRET_NAME, Secrets
from hyperruntime.secrets.redact import MARK
from hyperruntime.storage.run_files import open_regular, read_at_most

# Tables whose values may all be secret.
_VARIABLES = ("env", "environ", "environment", "headers", "build_args")
# Options of the gateway that say where a key is.
_NAMES_OF_PLACES = ("key_env", "key_file", "key_name")
_HEADER = re.compile(r"([^\s=:]+)\s*:")
_IN_A_URL = re.compile(r"(?<=://)[^/\s@'\"]+@")
_ASSIGNED = re.compile(
    r"""(?ix) \b (
        [\w.-]{0,40} (?: api[_-]?key | secret | passw(?:or)?d | token(?!s|iz|_id) | credential | authorization
            | (?<=[_.-])(?:pass|creds?)(?![a-z]) | (?-i:[a-z]Key(?![a-z])) )
        [\w.-]{0,40} \\{0,8}["']? \s* [=:] \s*
        ( \\{0,8}["'] (?: (?:bearer|basic|token)\s+ )? | (?:bearer|basic|token)\s+ )?
    ) (?(2) SIGN+ | SIGN{6,} )""".replace(
        "SIGN", r"""(?:[^\s"',;&\\]|\\(?!\\{0,8}["']))"""
    ),  # not an escaped quote
)
_PEM_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_END_OF_PEM_KEY = re.compile(r"-----END [A-Z ]{0,40}PRIVATE KEY-----")
_MOST_BYTES = 4 * 1024 * 1024


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file of at most 4 MiB; a device or a pipe is never waited
    for.

    Args:
        path: the file, which may be a symbolic link.

    Raises:
        OSError: it cannot be read, is not a regular file, or is too large.
        ValueError: the path is invalid.
    """
    with os.fdopen(open_regular(path, follows=True), "rb") as file:
        return read_at_most(file, _MOST_BYTES)


class SecretValues(Secrets):
    """Knows the secrets of this process and of files, also by their places; removes them."""

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        """Collect the secrets of the environment and of the ``.env`` files.

        Args:
            folders: directories whose ``.env`` file to read, besides the current one.
        """
        super().__init__()
        for name, value in os.environ.items():
            self._learn_url(value)
            if SECRET_NAME.search(name) and name not in DIRECTORIES:
                self.learn(value)
        for folder in dict.fromkeys((Path(), *folders)):
            self._learn_env_file(folder / ".env")
        self._private = {os.path.expanduser("~"): "~", socket.gethostname(): "<host>"}

    def learn_file(self, path: Path) -> None:
        """Remove the content of a key file from now on, or each value of a ``.env`` file."""
        self._learn_env_file(path)
        try:
            self.learn(read_regular(path).decode().strip())
        except (OSError, ValueError):
            pass  # then no program of ours could read the key

    def learn_values(self, value: Any) -> None:  # noqa: ANN401 - any JSON or TOML value
        """Collect the secrets of a JSON or TOML value by the names in it."""
        _mapped(value, self._learn_value, str)

    def _learn_value(self, value: object, name: str, hidden: bool, listed: bool) -> None:
        if value is None or isinstance(value, bool):
            return
        self._learn_url(str(value))
        if hidden or (_is_secret(name) and not isinstance(value, float)):
            self.learn(str(value))
        elif secret := _assigned_secret(name, str(value), listed=listed):
            self.learn(secret)

    def clean_value(self, value: Any) -> Any:  # noqa: ANN401 - any JSON or TOML value
        """Return a JSON or TOML value without secrets.

        Booleans and None stay, and numbers unless their name is secret or they are in a table of
        variables.
        """
        return _mapped(value, self._cleaned, self.clean_text)

    def _cleaned(self, value: object, name: str, hidden: bool, listed: bool) -> object:
        if value is None or isinstance(value, bool):
            return value
        if hidden or _is_secret(name):
            return MARK
        if isinstance(value, int | float):
            return value
        text = str(value)
        if secret := _assigned_secret(name, text, listed=listed):
            text = text.removesuffix(secret) + MARK
        return self.clean_text(text)

    def clean_text(self, text: str) -> str:
        """Return a text without secrets; the home directory becomes ``~`` and the host's name
        ``<host>``.
        """
        text = self.text(text)
        text = _IN_A_URL.sub(f"{MARK}@", text)
        text = _ASSIGNED.sub(rf"\1{MARK}", text)
        for private, shown in self._private.items():
            if len(private) > 3:
                text = re.sub(rf"(?<![\w-]){re.escape(private)}(?![\w-])", shown, text)
        return text

    def clean_lines(self, text: str) -> str:
        """Return a text of many lines without secrets, also those that are broken over two lines.

        :meth:`clean_text` would leave nothing of a text with many secrets in odd spellings.
        """
        text = _PEM_KEY.sub(MARK, text)
        if ends := list(_END_OF_PEM_KEY.finditer(text)):  # the text begins inside a key
            text = MARK + text[ends[-1].end() :]
        cleaned: list[str] = []
        for line in map(self.clean_text, text.split("\n")):
            both = f"{cleaned[-1]}\n{line}" if cleaned else line
            if cleaned and self.holds(both.encode(errors="replace")):
                cleaned[-1] = self.clean_text(both)
            else:
                cleaned.append(line)
        return "\n".join(cleaned)

    def _learn_env_file(self, path: Path) -> None:
        try:
            found = parse_dotenv(read_regular(path).decode())
        except (OSError, ValueError):
            return
        for name, value in found.items():
            self._learn_url(value)
            if SECRET_NAME.search(name) or _looks_random(value):
                self.learn(value)

    def _learn_url(self, value: str) -> None:
        for found in _IN_A_URL.findall(value):
            for part in found.removesuffix("@").split(":")[1:] or (found.removesuffix("@"),):
                self.learn(part)


def _mapped(
    value: Any,  # noqa: ANN401 - any JSON or TOML value
    leaf: Callable[[Any, str, bool, bool], Any],
    key: Callable[[str], str],
    name: str = "",
    *,
    hidden: bool = False,
    listed: bool = False,
) -> Any:  # noqa: ANN401 - any JSON or TOML value
    """Return a JSON or TOML value with other texts.

    Args:
        value: the value.
        leaf: returns what replaces a text, a number, a boolean or None. It gets the value, its
            name, whether every text in it is secret, and whether it is an item of a list.
        key: returns what replaces the key of a table.
        name: name of the value, such as the key of a table.
        hidden: whether every text in it is secret.
        listed: whether it is an item of a list.
    """
    if isinstance(value, Mapping):
        hidden = hidden or name in _VARIABLES
        return {
            key(str(inner)): _mapped(entry, leaf, key, str(inner), hidden=hidden)
            for inner, entry in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_mapped(entry, leaf, key, name, hidden=hidden, listed=True) for entry in value]
    return leaf(value, name, hidden, listed)


def _is_secret(name: str) -> bool:
    return name not in _NAMES_OF_PLACES and SECRET_NAME.search(name) is not None


def _assigned_secret(name: str, text: str, *, listed: bool) -> str:
    """Return the value in ``NAME=value`` or ``NAME: value`` if it may be secret; else "".

    Args:
        name: of the option; those of variables and headers have only secrets.
        text: one value of it.
        listed: whether it has a list of values; only then a colon is read, which a path or URL has
            too.
    """
    variable, _, value = text.partition("=")
    if listed and (header := _HEADER.match(text)) and (name in _VARIABLES or _is_secret(header[1])):
        return text[header.end() :]
    return value if name in _VARIABLES or _is_secret(variable) else ""


def _looks_random(value: str) -> bool:
    """Return whether a value of a ``.env`` file may be a key: long, without the signs of a path,
    URL or sentence.
    """
    return len(value) >= 12 and not re.search(r"[/\s]|\.\w{1,4}$", value)
