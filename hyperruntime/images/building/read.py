"""Read a Containerfile into stages of steps."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.images.building.steps import BuildMount, Copy, Run, Stage, Step, Workdir
from hyperruntime.images.dockerfile import (
    Instruction,
    assignments,
    json_words,
    mount_fields,
    parse_dockerfile,
    parse_heredoc,
    split_flags,
    split_words,
)
from hyperruntime.images.dockerfile_bases import no
from hyperruntime.images.packages.network import PROXY_VARIABLES
from hyperruntime.images.words import MODE_ALLOWED, expand, is_mode

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHELL = ("/bin/sh", "-c")
# an address and a port of this machine before it have no effect
_PORT = re.compile(r"(?:[\d.-]*:){0,2}(\d{1,9}(?:-\d{1,9})?)(?:/(tcp|udp|sctp))?", re.IGNORECASE)
_MODE = re.compile(r"[0-7]{1,5}", re.ASCII)
_LAST_PORT = 65535
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)(h|ms|m|s|us|ns))")
_NANOSECONDS = {"h": 3600e9, "m": 60e9, "s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
_TRUE = ("", "true", "1")
_ARCHITECTURES = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64"}


@attrs.frozen(kw_only=True)
class Part:
    """The instructions of one stage, before its base is known.

    Attributes:
        start: its FROM; None is the part before the first one.
        base: number of an earlier stage, ``scratch`` as "", or an image.
        name: its name, or "".
        rest: its other instructions.
    """

    start: Instruction
    base: int | str
    name: str
    rest: tuple[Instruction, ...]


class Containerfile:
    """A Containerfile whose stages can be read when their bases are known.

    Attributes:
        parts: the stages that the last one needs, by their numbers; the last one builds the image.
    """

    def __init__(
        self, text: str, build_args: Mapping[str, str], platform: Mapping[str, str]
    ) -> None:
        """Read the stages.

        Args:
            text: what :func:`hyperruntime.images.dockerfile_checks.check_dockerfile` returned.
            build_args: values for ``ARG``.
            platform: values of the automatic ``ARG``, such as ``TARGETARCH``.

        Raises:
            SpecError: an instruction is invalid.
        """
        self._given = build_args
        self._platform = platform
        self._global = dict(platform)
        self._args: dict[int | str, dict[str, str]] = {}  # of the stages that were read
        found: list[list[Instruction]] = []
        for each in parse_dockerfile(text):
            if each.name == "FROM":
                found.append([each])
            elif each.name and found:
                found[-1].append(each)
            elif each.name == "ARG":
                self._global_arg(each)
            elif each.name:
                no(each, "FROM must come first")
        if not found:
            raise SpecError("Containerfile", "no FROM", "the file must have FROM and an image")
        every: list[Part] = []
        for lines in found:
            every.append(self._part(lines, [one.name for one in every]))
        self._names = [one.name for one in every]
        self.parts = self._needed(every)

    def stage(self, number: int, config: Mapping[str, Any], triggers: str = "") -> Stage:
        """Return a stage. That of its base must have been read before.

        Args:
            number: the number of its part.
            config: the ``config`` of its base.
            triggers: instructions that the base runs first (ONBUILD).

        Raises:
            SpecError: an instruction is invalid, or not supported.
        """
        part = self.parts[number]
        # as documented by Docker ("Build variables"): a stage inherits the arguments of its base
        reader = _StageReader(self, number, config, self._args.get(part.base, {}))
        before = [each for each in parse_dockerfile(triggers) if each.name]
        for each in (*before, *part.rest):
            try:
                reader.take(each)
            except SpecError as error:
                if error.field == "Containerfile" and not str(error.value).startswith("line "):
                    no(each, error.allowed)
                raise
        self._args[number] = reader.args
        return Stage(steps=tuple(reader.steps), config=reader.config)

    def argument(self, name: str, default: str | None) -> str | None:
        """Return the value of an ``ARG`` in a stage; None if it has none."""
        if name in self._given:
            return self._given[name]
        return default if default is not None else self._global.get(name)

    def proxies(self) -> dict[str, str]:
        """Return the arguments that every ``RUN`` has without ``ARG``."""
        return {name: self._given[name] for name in PROXY_VARIABLES if name in self._given}

    def origin(self, each: Instruction, name: str, before: int) -> int | str:
        """Return the stage that ``--from`` names, or the image."""
        if name.isdigit():
            if int(name) >= before:
                no(each, "--from must name an earlier stage")
            return int(name)
        return self._stage_named(name, before, name)

    def _stage_named(self, name: str, before: int, other: str) -> int | str:
        known = [number for number in range(before) if self._names[number] == name.lower()]
        return known[-1] if known else other

    def _global_arg(self, each: Instruction) -> None:
        for name, default in assignments(each.rest):
            value = self._given.get(name)
            if value is None and default is not None:
                value = expand(default, self._global)
            if value is not None:
                self._global[name] = value

    def _part(self, lines: Sequence[Instruction], names: Sequence[str]) -> Part:
        start = lines[0]
        words = split_flags(start.rest)[1].split()
        base = expand(words[0], self._global)
        name = words[2].lower() if len(words) > 2 else ""
        known = [number for number, one in enumerate(names) if one and one == base.lower()]
        found: int | str = known[-1] if known else "" if base == "scratch" else base
        if base.isdecimal() and base.isascii():
            if int(base) >= len(names):
                no(start, "FROM must name an image or an earlier stage")
            found = int(base)
        return Part(start=start, base=found, name=name, rest=tuple(lines[1:]))

    def _needed(self, every: Sequence[Part]) -> dict[int, Part]:
        needed = {len(every) - 1}
        for number in reversed(range(len(every))):
            if number in needed:
                self._check_platform(every[number].start)
                needed.update(self._uses(every[number], number))
        return {number: every[number] for number in sorted(needed)}

    def _check_platform(self, start: Instruction) -> None:
        flags = split_flags(start.rest)[0]
        wanted = [expand(flag.partition("=")[2], self._global) for flag in flags]
        here = self._platform["TARGETPLATFORM"]
        if odd := next((one for one in wanted if not _is_platform(one, here)), None):
            no(start, f"this machine builds images for {here}, not for {odd}")

    def _uses(self, part: Part, number: int) -> Iterator[int]:
        """Yield the numbers of the stages that a stage needs."""
        if isinstance(part.base, int):
            yield part.base
        for each in part.rest:
            for flag in split_flags(each.rest)[0] if each.name in ("COPY", "ADD") else ():
                if flag.startswith("--from="):
                    origin = self.origin(each, flag.removeprefix("--from="), number)
                    if isinstance(origin, int):
                        yield origin


class _StageReader:
    """Follows the instructions of one stage.

    Attributes:
        steps: what changes files.
        config: the configuration so far.
        args: the values of its arguments so far.
    """

    def __init__(
        self,
        file: Containerfile,
        number: int,
        config: Mapping[str, Any],
        args: Mapping[str, str],
    ) -> None:
        self.steps: list[Step] = []
        self.config = dict(config)
        self._file = file
        self._number = number
        env = [one.partition("=")[::2] for one in self.config.get("Env") or ()]
        self._env = {"PATH": PATH, **dict(env)}
        self._set_env({})
        self.args = dict(args)
        self._has_cmd = False
        self._shell = tuple(self.config.get("Shell") or _SHELL)
        self.config.pop("OnBuild", None)

    def take(self, each: Instruction) -> None:
        """Follow one instruction."""
        if each.heredocs and each.name not in ("RUN", "COPY", "ADD"):
            no(each, f"{each.name} can have no here-document without Podman and Docker")
        take: Callable[[Instruction], None] = getattr(self, f"_take_{each.name.lower()}")
        take(each)

    @property
    def _values(self) -> dict[str, str]:
        return {**self.args, **self._env}

    @property
    def _workdir(self) -> str:
        return self.config.get("WorkingDir") or "/"

    def _expand(self, text: str) -> str:
        return expand(text, self._values)

    def _take_arg(self, each: Instruction) -> None:
        for name, default in assignments(each.rest):
            value = self._file.argument(name, None if default is None else self._expand(default))
            if value is not None:
                self.args[name] = value

    def _take_env(self, each: Instruction) -> None:
        self._set_env(self._pairs(each))

    def _set_env(self, new: Mapping[str, str]) -> None:
        self._env |= new
        self.config["Env"] = [f"{name}={value}" for name, value in self._env.items()]

    def _take_label(self, each: Instruction) -> None:
        self.config["Labels"] = {**(self.config.get("Labels") or {}), **self._pairs(each)}

    def _pairs(self, each: Instruction) -> dict[str, str]:
        found = {}
        for name, text in assignments(each.rest, old_form=True):
            if text is None or not name:
                no(each, f"write {each.name} NAME=value, for each")
            found[self._expand(name)] = self._expand(text)
        if not found:
            no(each, f"write {each.name} NAME=value")
        return found

    def _take_maintainer(self, each: Instruction) -> None:
        """Ignore the author: the configuration has none."""

    def _take_shell(self, each: Instruction) -> None:
        self._shell = tuple(json_words(each.rest))
        if not self._shell:
            no(each, 'SHELL must be a list such as ["/bin/bash", "-c"]')
        self.config["Shell"] = list(self._shell)

    def _take_user(self, each: Instruction) -> None:
        if not each.rest:
            no(each, "name a user")
        self.config["User"] = self._expand(each.rest)  # root if its variable is empty

    def _take_workdir(self, each: Instruction) -> None:
        path = self._expand(each.rest)
        if not path:
            no(each, "name a directory")
        self.config["WorkingDir"] = _joined(self._workdir, path)
        self.steps.append(
            Workdir(**_of(each), path=self._workdir, user=self.config.get("User", ""))
        )

    def _take_stopsignal(self, each: Instruction) -> None:
        self.config["StopSignal"] = self._expand(each.rest)

    def _take_expose(self, each: Instruction) -> None:
        ports = dict(self.config.get("ExposedPorts") or {})
        for word in self._expand(each.rest).split():
            found = _PORT.fullmatch(word)
            if found is None:
                no(each, "a port must be a number or a range, with /tcp or /udp")
            first, _, last = found[1].partition("-")
            if max(int(first), int(last or first)) > _LAST_PORT:
                no(each, f"a port is at most {_LAST_PORT}")
            for port in range(int(first), int(last or first) + 1):
                ports[f"{port}/{(found[2] or 'tcp').lower()}"] = {}
        self.config["ExposedPorts"] = ports

    def _take_volume(self, each: Instruction) -> None:
        words = json_words(each.rest) or split_words(each.rest)
        paths: dict[str, dict[str, str]] = {self._expand(word): {} for word in words}
        if not paths or "" in paths:
            no(each, "name a directory")
        self.config["Volumes"] = {**(self.config.get("Volumes") or {}), **paths}

    def _take_onbuild(self, each: Instruction) -> None:
        if not each.rest.strip():
            no(each, "ONBUILD must be followed by an instruction")
        if each.rest.split(None, 1)[0].upper() in ("ONBUILD", "FROM", "MAINTAINER"):
            no(each, "ONBUILD may not be followed by ONBUILD, FROM and MAINTAINER")
        self.config["OnBuild"] = [*(self.config.get("OnBuild") or ()), each.rest]

    def _take_from(self, each: Instruction) -> None:
        no(each, "a trigger of the base may not be FROM")

    def _command(self, text: str) -> list[str]:
        if not text or re.fullmatch(r"\[\s*\]", text):
            return []
        return json_words(text) or [*self._shell, text]

    def _take_cmd(self, each: Instruction) -> None:
        self.config["Cmd"] = self._command(each.rest)
        self._has_cmd = True

    def _take_entrypoint(self, each: Instruction) -> None:
        self.config["Entrypoint"] = self._command(each.rest)
        if not self._has_cmd:  # that of the base was for another program
            self.config["Cmd"] = []

    def _take_healthcheck(self, each: Instruction) -> None:
        flags, rest = split_flags(each.rest)
        kind, command = [*rest.split(None, 1), "", ""][:2]
        health: dict[str, Any] = {}
        for flag in flags:
            name, _, value = flag.removeprefix("--").partition("=")
            if name == "retries" and value.isdigit():
                health["Retries"] = int(value)
            elif name in ("interval", "timeout", "start-period", "start-interval"):
                key = "".join(word.capitalize() for word in name.split("-"))
                health[key] = _duration(each, value)
            else:
                no(each, f"HEALTHCHECK may not have {flag!r}")
        if kind.upper() == "NONE" and not command and not flags:
            health["Test"] = ["NONE"]
        elif kind.upper() == "CMD" and command:
            words = json_words(command)
            health["Test"] = ["CMD", *words] if words else ["CMD-SHELL", command]
        else:
            no(each, "write HEALTHCHECK NONE, or HEALTHCHECK CMD and a command")
        self.config["Healthcheck"] = health

    def _take_run(self, each: Instruction) -> None:
        flags, rest = split_flags(each.rest)
        args = tuple(self._command(rest))
        script = ""
        if each.heredocs and len(split_words(rest)) == 1:  # the here-document is the command
            first = each.heredocs[0]
            script = first.text if first.content.startswith("#!") else ""
            args = (*self._shell, first.text)
        elif each.heredocs:
            bodies = (f"{one.content}{one.name}" for one in each.heredocs)
            args = (*self._shell, "\n".join([rest, *bodies]))
        if not rest:
            no(each, "name a command")
        env = {**self._file.proxies(), **self._values}
        self.steps.append(
            Run(
                **_of(each),
                args=args,
                script=script,
                env=env,
                hidden=frozenset(self._file.proxies()) - set(self._values),
                workdir=self._workdir,
                user=self.config.get("User", ""),
                network="--network=none" not in flags,
                mounts=tuple(self._mounts(each, flags)),
            )
        )

    def _mounts(self, each: Instruction, flags: Sequence[str]) -> Iterator[BuildMount]:
        for flag in flags:
            if flag.startswith("--mount="):
                fields = mount_fields(flag)
                kind = fields.get("type", "bind").lower()
                # without a secret or an agent, which this library never has, nothing is mounted
                if kind not in ("secret", "ssh") or fields.get("required", "0") in _TRUE:
                    yield self._mount(each, fields, kind)

    def _mount(self, each: Instruction, fields: Mapping[str, str], kind: str) -> BuildMount:
        if kind not in ("bind", "cache", "tmpfs"):
            no(each, f"without Podman and Docker, RUN has no mount of type {kind}")
        if not fields.get("target"):
            no(each, "a mount must have a target")
        if "size" in fields:
            no(each, "without Podman and Docker, a mount has no size")
        owner = fields.get("uid", "0"), fields.get("gid", "0")
        if not all(one.isascii() and one.isdigit() for one in owner):
            no(each, "uid and gid of a mount must be numbers")
        mode = fields.get("mode", "755")
        if not _MODE.fullmatch(mode):
            no(each, "the mode of a mount must be an octal number such as 755")
        return BuildMount(
            kind=kind,
            target=_joined(self._workdir, fields["target"]),
            source=fields.get("id", fields.get("source", "")),
            read_only=kind == "bind" or "ro" in fields,
            mode=int(mode, 8),
            owner=f"{int(owner[0])}:{int(owner[1])}",
        )

    def _take_add(self, each: Instruction) -> None:
        self._copy(each, unpacks=True)

    def _take_copy(self, each: Instruction) -> None:
        self._copy(each, unpacks=False)

    def _copy(self, each: Instruction, *, unpacks: bool) -> None:
        flags, rest = split_flags(each.rest)
        options = self._options(each, flags)
        words = [self._expand(word) for word in json_words(rest) or split_words(rest)]
        raw = json_words(rest) or split_words(rest)
        if len(words) < 2 or not words[-1]:
            no(each, "name a source and a target")
        bodies = iter(each.heredocs)
        sources = []
        texts = []
        for plain, word in zip(raw[:-1], words[:-1], strict=True):
            if each.heredocs and parse_heredoc(plain) is not None:
                one = next(bodies)
                text = expand(one.text, self._values, quotes=False) if one.expands else one.text
                texts.append((one.name, text))
            elif unpacks and re.match(r"(https?|git|ssh)://|git@", word):
                no(each, "ADD of a URL is not supported here; download it first, and use COPY")
            else:
                sources.append(word)
        origin = options.pop("from", None)
        if origin is not None and texts:
            no(each, "a here-document must be a source, without --from")
        if len(words) > 2 and not words[-1].endswith("/"):
            no(each, "the target of several sources must end with /")
        target = _joined(self._workdir, words[-1])
        into = words[-1].endswith(("/", "/.")) or words[-1] in (".", "..")
        self.steps.append(
            Copy(
                **_of(each),
                origin=None if origin is None else self._file.origin(each, origin, self._number),
                sources=tuple(sources),
                texts=tuple(texts),
                target=f"{target.rstrip('/')}/" if into else target,
                chmod=options.get("chmod", ""),
                chown=options.get("chown", ""),
                link=options.get("link", "false").lower() in _TRUE,
                unpacks=unpacks,
            )
        )

    def _options(self, each: Instruction, flags: Sequence[str]) -> dict[str, str]:
        found = {}
        for flag in flags:
            name, _, value = flag.removeprefix("--").partition("=")
            if name not in ("from", "chmod", "chown", "link"):
                no(each, f"without Podman and Docker, {each.name} has no --{name}")
            found[name] = value if name == "from" else self._expand(value)
        if found.get("chmod") and not is_mode(found["chmod"]):
            no(each, MODE_ALLOWED)
        return found


def _of(each: Instruction) -> dict[str, Any]:
    return {"line": each.line, "text": f"{each.name} {each.rest}"}


def _joined(workdir: str, path: str) -> str:
    """Return a path without ``..``, relative to a directory; links count as directories."""
    return "/" + posixpath.normpath(posixpath.join(workdir, path)).lstrip("/")


def _duration(each: Instruction, text: str) -> int:
    found = _DURATION.findall(text)
    if not found or "".join(number + unit for number, unit in found) != text:
        no(each, f"{text!r} is not a duration such as 30s")
    return int(sum(float(number) * _NANOSECONDS[unit] for number, unit in found))


def _is_platform(wanted: str, here: str) -> bool:
    """Return whether a platform, whose variant counts only if it is named, is that of this
    machine. A system or an architecture alone is one.
    """
    parts = [_ARCHITECTURES.get(part, part) for part in wanted.lower().split("/")]
    own = here.split("/")[:2]
    return parts in ([""], own[:1], own[1:]) or parts[:2] == own
