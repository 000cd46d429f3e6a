"""``hyperrun bug-report``: write an archive about this machine, and about a run, from which keys
are removed.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import click

from hyperruntime.cli.command import AGENT_FILE, Command, State, example
from hyperruntime.cli.machine.doctor import all_findings
from hyperruntime.cli.machine.engines import engine_names, engine_to_json, view_engine
from hyperruntime.cli.messages import note
from hyperruntime.cli.versions import version_facts
from hyperruntime.errors import AgentError, ArchiveError, HyperRuntimeError
from hyperruntime.json_values import parse_json, parse_toml
from hyperruntime.runs.own_mark import has_own_mark
from hyperruntime.secrets.values import SecretValues, read_regular
from hyperruntime.storage.atomic import storage_errors
from hyperruntime.storage.run_files import MOST_JSON_BYTES, open_run_file, read_run_file

_ABOUT = """\
A report about hyperruntime, made by `hyperrun bug-report`.

Keys, passwords, your home directory and the host's name were removed. The report has no file of an agent, no transcript
and no answer of a model, but the journal and the log of a run may quote the last line of a program of an agent. Look at
the report before you send it: no program knows everything that you want to keep private.

Files:
"""
_RUN_FILE = "run.json"
_NOT_SHOWN = "left out: this user did not make the run that names the file\n"
# the ends of these; a log of requests has prompts
_LOGS = ("generate_loop.log", "journal.jsonl", "groups.jsonl")
_TAIL_BYTES = 64 * 1024
_MOST_CONFIG_BYTES = 1024 * 1024
# Only the names of these variables are in the report.
_VARIABLES = (
    *(
        "HYPERRUNTIME_",
        "OPENAI_",
        "ANTHROPIC_",
        "CONTAINER",
        "DOCKER_",
        "APPTAINER",
        "SINGULARITY",
        "SLURM_",
        "XDG_",
    ),
    *(
        "PYTHON",
        "LD_",
        "TMPDIR",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "http_proxy",
        "https_proxy",
        "LC_",
        "LANG",
    ),
)


@attrs.frozen(kw_only=True)
class Source:
    """One file of the user that the report describes.

    Attributes:
        name: its path in the report.
        value: its content if it is a table of values, else None.
        private: other content of the file: not in the report, but its secrets are removed from the
            report.
        text: its end if it is a log, else "".
        folder: its directory.
    """

    name: str
    value: Any = None
    private: Any = None
    text: str = ""
    folder: Path


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun bug-report", "hyperrun bug-report outputs/generate_1 --config gateway.toml"
    ),
)
@click.argument(
    "run", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option(
    "--config",
    "configs",
    metavar="FILE",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"Add a configuration file, as TOML; {AGENT_FILE} of the current directory is always "
    "added.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The archive (.tar.gz) to write.",
)
@click.pass_obj
def bug_report(
    state: State, run: Path | None, configs: tuple[Path, ...], output: Path | None
) -> None:
    """Write an archive with what a bug report needs: versions, doctor, engines, configuration, and
    logs of RUN.

    Keys and passwords are removed, in the usual encodings too. Nothing is sent anywhere.
    """
    output = output or Path(f"hyperrun-bug-report-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    if os.path.lexists(output):  # before engines are asked, which takes seconds
        raise _exists(output)
    files = report_files(state.runtime, run, configs)
    _write(output, files)
    click.echo(
        f"wrote {output} ({', '.join(files)}); look at it before you send it: tar -xzf {output}"
    )


def report_files(
    runtime: str | None, run: Path | None, configs: Sequence[Path]
) -> dict[str, bytes]:
    """Return the files of a report by name, without secrets.

    Args:
        runtime: the only engine to describe; None means all.
        run: the directory of a run, or None.
        configs: configuration files.

    Raises:
        AgentError: a configuration file cannot be read as TOML.
        ArchiveError: ``run`` has no ``run.json``.
    """
    sources = [*_configurations(configs), *(_run_sources(run) if run is not None else ())]
    secrets = _all_secrets(sources)  # all of them, before the first text is cleaned
    names = engine_names(runtime)
    values = {
        "versions.json": version_facts(),
        "doctor.json": {
            part: [attrs.asdict(one) for one in found]
            for part, found in all_findings(names, _say_part).items()
        },
        "engines.json": [engine_to_json(view_engine(name)) for name in names],
        "environment.json": sorted(name for name in os.environ if name.startswith(_VARIABLES)),
        **{source.name: source.value for source in sources if source.value is not None},
    }
    texts = {name: _as_text(secrets.clean_value(value)) for name, value in values.items()}
    texts |= {source.name: source.text for source in sources if source.value is None}
    about = _ABOUT + "".join(f"- {name}\n" for name in texts)
    return {name: _cleaned(secrets, text) for name, text in {"about.txt": about, **texts}.items()}


def _say_part(part: str) -> None:
    note(f"looking at {part}")


def _as_text(value: Any) -> str:  # noqa: ANN401 - any JSON value
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _cleaned(secrets: SecretValues, text: str) -> bytes:
    data = secrets.clean_lines(text).encode(errors="replace")
    return b"left out: a key could not be removed from it\n" if secrets.holds(data) else data


def _configurations(configs: Sequence[Path]) -> Iterator[Source]:
    own = Path(AGENT_FILE)
    for number, path in enumerate(
        dict.fromkeys([*([own] if os.path.lexists(own) else []), *configs])
    ):
        try:
            value = parse_toml(_configuration(path, is_named=path in configs).decode())
        except (OSError, ValueError) as error:
            if path in configs:
                raise AgentError(
                    f"{path} cannot be read as TOML: {error}; correct it, or report without it"
                ) from error
            value = {"unreadable": str(error)}
        yield Source(
            name=f"configuration/{number}-{path.stem}.json", value=value, folder=path.parent
        )


def _configuration(path: Path, *, is_named: bool) -> bytes:
    """Return the start of a file that the user names, or the file of the current directory, which
    anybody may make.
    """
    if not is_named:
        return read_run_file(path, below=path.parent, most_bytes=_MOST_CONFIG_BYTES)
    with open(path, "rb") as file:
        return file.read(_MOST_CONFIG_BYTES)


def _run_sources(run: Path) -> Iterator[Source]:
    try:
        value = parse_json(read_run_file(run / _RUN_FILE, below=run, most_bytes=MOST_JSON_BYTES))
    except (OSError, ValueError) as error:
        raise ArchiveError(
            f"{run} has no readable {_RUN_FILE}: {error}; name the directory of a run"
        ) from error
    yield Source(name=f"run/{_RUN_FILE}", value=value, folder=run)
    options = value.get("options") if isinstance(value, Mapping) else None
    gateway = options.get("gateway") if isinstance(options, Mapping) else None
    if isinstance(gateway, str):
        with suppress(OSError, ValueError):  # it may be gone, or be no file
            found = parse_toml(read_regular(Path(gateway)).decode())
            folder = Path(gateway).parent
            if has_own_mark(value, run):
                shown = {"gateway": found.pop("gateway", {})}
                yield Source(name="run/gateway.json", value=shown, private=found, folder=folder)
            else:  # another user may have named any file: only its keys are removed from the report
                yield Source(name="run/gateway.txt", text=_NOT_SHOWN, private=found, folder=folder)
    for name in _LOGS:
        if text := _end_of(run / name):
            yield Source(name=f"run/{name}", text=text, folder=run)


def _end_of(path: Path) -> str:
    """Return the last lines of a file, or "" if it does not exist or is not a regular file."""
    try:
        descriptor = open_run_file(path, below=path.parent)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        file.seek(max(0, size - _TAIL_BYTES))
        data = file.read(_TAIL_BYTES)
    if size > _TAIL_BYTES:
        data = data.partition(b"\n")[2]  # a part of a line may be a part of a key
    return data.decode(errors="replace")


def _all_secrets(sources: Sequence[Source]) -> SecretValues:
    agents = [
        Path(found) for source in sources for key, found in _leaves(source.value) if key == "agent"
    ]
    secrets = SecretValues([*(source.folder for source in sources), *agents])
    for source in sources:
        secrets.learn_values(source.value)
        secrets.learn_values(source.private)
        for key, found in _leaves([source.value, source.private]):
            if key == "key_env":
                secrets.learn(os.environ.get(found, ""))
            elif key == "key_file":
                # of a user that does not exist; then no program of ours could read it
                with suppress(RuntimeError):
                    secrets.learn_file(source.folder / Path(found).expanduser())
    return secrets


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401 - any JSON or TOML value
    """Yield each text in a value with the name that it belongs to."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _leaves(entry, str(key))
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _leaves(entry, name)
    elif isinstance(value, str):
        yield name, value


def _write(output: Path, files: Mapping[str, bytes]) -> None:
    """Write a new archive that only this user can read."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"hyperrun-bug-report/{name}")
            entry.size = len(content)
            entry.mode = 0o600
            entry.mtime = int(time.time())
            archive.addfile(entry, io.BytesIO(content))
    # O_EXCL: never through a link that somebody else made meanwhile
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise _exists(output) from None
    except OSError as error:
        raise HyperRuntimeError(
            f"{output} cannot be written: {error.strerror}; choose another with --output"
        ) from error
    with storage_errors(output), open(descriptor, "wb") as file:
        file.write(data.getvalue())


def _exists(output: Path) -> HyperRuntimeError:
    return HyperRuntimeError(
        f"{output} exists already; remove it, or choose another name with --output"
    )
