"""Find the keys and passwords that a bug report must not contain, and remove them from its texts and values.

A value is secret by its name (``*_TOKEN``, ``api_key``), by its place (a ``.env`` file, the key file of a model server,
a table of environment variables), or by its look (the prefixes that services give their keys).
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hyperruntime.gateway.config.values import parse_dotenv
from hyperruntime.gateway.log.redact import MARK, Redactor
from hyperruntime.report.page.secrets import Screen

_SECRET_NAME = re.compile(
    r"api.?key|(?:^|[_.-])keys?(?:$|[_.-])|token(?!s|iz|_id)|secret|passw|passphrase|credential|cookie|authorization|bearer"
    r"|(?:^|[_.-])(?:auth|pat|pwd|dsn)(?:$|[_.-])",
    re.IGNORECASE,
)
_NAMES_OF_PLACES = ("key_env", "key_file", "key_name")  # options of the gateway that say where a key is
_DIRECTORIES = ("PWD", "OLDPWD")  # variables of every shell, not passwords
_VARIABLES = ("env", "environ", "environment", "headers", "build_args")  # tables whose values may all be secret
_IN_A_URL = re.compile(r"(?<=://)[^/\s@'\"]+@")
_ASSIGNED = re.compile(
    r"""(?ix) \b (
        [\w.-]{0,40} (?: api[_-]?key | secret | passw(?:or)?d | token(?!s|iz|_id) | credential | authorization )
        [\w.-]{0,40} ["']? \s* [=:] \s* ["']? (?: (?:bearer|basic)\s+ )?
    ) ( [^\s"',;&]{6,} )""",
)


class SecretValues:
    """Knows the secrets of this process and of files; removes them."""

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        """Collect the secrets of the environment and of the ``.env`` files.

        Args:
            folders: directories whose ``.env`` file to read, besides the current one.
        """
        self._redactor = Redactor()
        self._screen = Screen()
        for name, value in os.environ.items():
            self._learn_url(value)
            if _SECRET_NAME.search(name) and name not in _DIRECTORIES:
                self.learn(value)
        for folder in dict.fromkeys((Path(), *folders)):
            self._learn_env_file(folder / ".env")
        self._private = {os.path.expanduser("~"): "~", socket.gethostname(): "<host>"}

    def learn(self, secret: str) -> None:
        """Remove a text from now on; one of fewer than 6 characters is too short to be searched."""
        for text in {secret, secret.strip()}:
            self._redactor.add(text)

    def learn_file(self, path: Path) -> None:
        """Remove the content of a key file from now on, or each value of a ``.env`` file."""
        self._learn_env_file(path)
        try:
            self.learn(path.read_text().strip())
        except (OSError, ValueError):
            pass  # then no program of ours could read the key

    def learn_values(self, value: Any, name: str = "") -> None:  # noqa: ANN401 - any JSON or TOML value
        """Collect the secrets of a JSON or TOML value by the names in it."""
        if isinstance(value, Mapping):
            for key, entry in value.items():
                if name in _VARIABLES and isinstance(entry, str):
                    self.learn(entry)
                self.learn_values(entry, str(key))
        elif isinstance(value, list | tuple):
            for entry in value:
                self.learn_values(entry, name)
        elif value is not None and not isinstance(value, bool | float):
            self._learn_url(str(value))
            if _is_secret(name):
                self.learn(str(value))
            elif secret := _assigned_secret(name, str(value)):
                self.learn(secret)

    def clean_value(self, value: Any, name: str = "") -> Any:  # noqa: ANN401 - any JSON or TOML value
        """Return a JSON or TOML value without secrets; numbers, booleans and None stay unless their name is secret."""
        if isinstance(value, Mapping):
            hidden = name in _VARIABLES
            return {
                self.clean_text(str(key)): MARK
                if hidden and isinstance(entry, str)
                else self.clean_value(entry, str(key))
                for key, entry in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.clean_value(entry, name) for entry in value]
        if value is None or isinstance(value, bool):
            return value
        if _is_secret(name):
            return MARK
        if isinstance(value, int | float):
            return value
        text = str(value)
        if secret := _assigned_secret(name, text):
            text = text.removesuffix(secret) + MARK
        return self.clean_text(text)

    def clean_text(self, text: str) -> str:
        """Return a text without secrets; the home directory becomes ``~`` and the host's name ``<host>``."""
        text = self._screen.text(self._redactor.clean_text(text))
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
        cleaned: list[str] = []
        for line in map(self.clean_text, text.split("\n")):
            both = f"{cleaned[-1]}\n{line}" if cleaned else line
            if cleaned and self.holds(both.encode(errors="replace")):
                cleaned[-1] = self.clean_text(both)
            else:
                cleaned.append(line)
        return "\n".join(cleaned)

    def holds(self, data: bytes) -> bool:
        """Return whether bytes still contain a known secret."""
        return self._redactor.clean(data) != data

    def _learn_env_file(self, path: Path) -> None:
        try:
            found = parse_dotenv(path.read_text())
        except (OSError, ValueError):
            return
        for name, value in found.items():
            self._learn_url(value)
            if _SECRET_NAME.search(name) or _looks_random(value):
                self.learn(value)

    def _learn_url(self, value: str) -> None:
        for found in _IN_A_URL.findall(value):
            for part in found.removesuffix("@").split(":")[1:] or (found.removesuffix("@"),):
                self.learn(part)


def _is_secret(name: str) -> bool:
    return name not in _NAMES_OF_PLACES and _SECRET_NAME.search(name) is not None


def _assigned_secret(name: str, text: str) -> str:
    """Return the value in ``NAME=value`` if it may be secret: in a table of variables, or by its name; else ""."""
    variable, _, value = text.partition("=")
    return value if name in _VARIABLES or _is_secret(variable) else ""


def _looks_random(value: str) -> bool:
    """Return whether a value of a ``.env`` file may be a key: long, without the signs of a path, URL or sentence."""
    return len(value) >= 12 and not re.search(r"[/\s]|\.\w{1,4}$", value)
