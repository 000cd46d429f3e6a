"""Read the Containerfiles of recipes, so that a test can compare the images that they make."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import attrs


@attrs.frozen(kw_only=True)
class Content:
    """The content of a Containerfile.

    Attributes:
        base: the base image; a build argument in it is written as ``${NAME}``.
        arguments: build arguments and their defaults.
        env: the environment of the container.
        copies: source and target of each copy from the context.
        script: the words of all commands, in order.
        entry: the words of the command that the container runs.
        other: keywords or sections that have no attribute.
    """

    base: str
    arguments: dict[str, str]
    env: dict[str, str]
    copies: list[tuple[str, str]]
    script: list[str]
    entry: list[str]
    other: list[str]

    @property
    def packages(self) -> list[str]:
        """Return the Debian packages that the commands install."""
        return [name for words in _commands(self.script) for name in _installed(words)]


def read_containerfile(text: str) -> Content:
    """Parse a Containerfile with one stage and with commands in shell form."""
    joined = re.sub(r"\\\n", " ", _without_comments(text))
    base = ""
    arguments: dict[str, str] = {}
    env: dict[str, str] = {}
    copies: list[tuple[str, str]] = []
    script: list[str] = []
    entry: list[str] = []
    other: list[str] = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        keyword, _, rest = line.partition(" ")
        if keyword == "FROM":
            base = rest.strip()
        elif keyword == "ARG":
            arguments |= _pairs(rest)
        elif keyword == "ENV":
            env |= _pairs(rest)
        elif keyword == "COPY":
            source, target = rest.split()
            copies.append((source, target))
        elif keyword == "RUN":
            script += _words(rest)
        elif keyword in ("ENTRYPOINT", "CMD"):
            entry += re.findall(r'"([^"]*)"', rest)
        else:
            other.append(keyword)
    return Content(
        base=base,
        arguments=arguments,
        env=env,
        copies=copies,
        script=script,
        entry=entry,
        other=other,
    )


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))


def _pairs(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in shlex.split(text))}


def _words(text: str) -> list[str]:
    """Return shell words with separate operators; the end of a line is a semicolon if a command may
    end there.
    """
    lexer = shlex.shlex(text.strip().replace("\n", " ; "), posix=False, punctuation_chars=";<>|&")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if word == ";" and (not words or words[-1] in (";", "&&", "||", "|", "then", "else", "do")):
            continue
        words.append(word)
    return words


def _commands(script: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in [*script, ";"]:
        if set(word) <= set(";&|"):
            yield command
            command = []
        else:
            command.append(word)


def _installed(command: list[str]) -> list[str]:
    if "apt-get" not in command or "install" not in command:
        return []
    return [word for word in command[command.index("install") + 1 :] if not word.startswith("-")]
