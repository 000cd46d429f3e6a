"""``hyperrun doctor``: report what works on this machine, what does not, and the next steps."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.machine.engines import diagnose_engine, engine_names, view_engine
from hyperruntime.cli.machine.job_findings import job_findings, look_around
from hyperruntime.cli.machine.storage_findings import storage_findings
from hyperruntime.cli.params import GPUS
from hyperruntime.cli.tables import json_option, print_json
from hyperruntime.driver import Finding
from hyperruntime.gpu.devices import load_devices
from hyperruntime.host.cache_dir import cache_directory
from hyperruntime.host.temporary import SCRATCH, temporary_directory
from hyperruntime.units import GIB, MIB, format_size

_LEAST_MEMORY = GIB
_EXIT_NO_RUNTIME = 3
_OTHER_PLACE = f"name another directory: {SCRATCH}, XDG_CACHE_HOME or --output-dir-parent"
# by name: how to find it, and the least free space
_DIRECTORIES: dict[str, tuple[Callable[[], Path], int]] = {
    "temporary files": (lambda: Path(temporary_directory()), 256 * MIB),
    "cache": (cache_directory, 64 * MIB),
    "current directory": (Path.cwd, 64 * MIB),
}
_MARKS = {True: ("ok", "green"), False: ("FAIL", "red"), None: ("note", "yellow")}


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun doctor", "hyperrun doctor podman --json", "hyperrun doctor --gpu cuda"
    ),
)
@click.argument("name", required=False)
@click.option(
    "--gpu",
    "image",
    metavar="IMAGE",
    help="Start a container of this image with GPUs; check each step.",
)
@click.option("--gpus", type=GPUS, default="all", show_default=True, help="With --gpu: which GPUs.")
@json_option
@click.pass_obj
def doctor(
    state: State, name: str | None, image: str | None, gpus: str | tuple[str, ...], as_json: bool
) -> int:
    """Diagnose this machine and every runtime, or only runtime NAME, and print the next steps.

    Exits with 0 if a runtime is usable, else with 3. With --gpu: with 0 if every step works, else
    with 1.
    """
    if image is not None:
        state.runtime = name or state.runtime
        return _examine_gpus(state, image, gpus, as_json=as_json)
    names = engine_names(name or state.runtime)
    parts = all_findings(names)
    usable = [engine for engine in names if view_engine(engine).usable]
    if as_json:
        print_json({"usable": usable, "findings": parts})
    else:
        _print(parts, usable, names)
    return 0 if usable else _EXIT_NO_RUNTIME


def all_findings(
    engines: Sequence[str], on_part: Callable[[str], object] = lambda part: None
) -> dict[str, list[Finding]]:
    """Return the findings about the machine, and about each named engine.

    Args:
        engines: the names of the engines.
        on_part: called before each part, with a text such as ``podman``; an engine takes seconds.
    """
    on_part("the machine")
    own = (*machine_findings(), *storage_findings(), *job_findings(look_around()))
    found = {"machine": list(own)}
    for engine in engines:
        on_part(engine)
        found[engine] = diagnose_engine(engine)
    return found


def _examine_gpus(state: State, image: str, gpus: str | tuple[str, ...], *, as_json: bool) -> int:
    from hyperruntime.cli.machine.gpu_doctor import gpu_findings

    found: list[Finding] = []
    for finding in gpu_findings(state, image, gpus):
        found.append(finding)
        if not as_json:
            _print_finding(finding)
        if finding.ok is False:
            break
    works = all(finding.ok is not False for finding in found)
    if as_json:
        print_json({"works": works, "findings": found})
    return 0 if works else 1


def _print(parts: dict[str, list[Finding]], usable: Sequence[str], names: Sequence[str]) -> None:
    for part, findings in parts.items():
        click.secho(part, bold=True)
        for found in findings:
            _print_finding(found)
        if not findings:
            click.echo("  note  no findings")
    if usable:
        click.echo(f"\ncontainers run here with: {', '.join(usable)}")
    else:
        click.echo(
            f"\nno runtime works here yet ({', '.join(names) or 'none is installed'}): see the "
            "next steps above"
        )


def _print_finding(found: Finding) -> None:
    word, colour = _MARKS[found.ok]
    click.echo(f"  {click.style(f'{word:4}', fg=colour)}  {found.subject}: {found.detail}")
    if found.next_step:
        click.echo(f"        next step: {found.next_step}")


def machine_findings() -> Iterator[Finding]:
    """Yield the findings that belong to no engine: Python, git, memory, disk space and devices."""
    yield Finding(
        subject="python", ok=True, detail=f"{platform.python_version()} ({sys.executable})"
    )
    yield _git()
    yield _memory()
    for what, (find, least) in _DIRECTORIES.items():
        try:
            yield _space(what, find(), least)
        except OSError as error:
            yield Finding(subject=what, ok=False, detail=str(error), next_step=_OTHER_PLACE)
    registry = load_devices()
    yield from registry.findings
    if names := registry.names():
        yield Finding(subject="devices", ok=True, detail=f"{', '.join(names)} (CDI)")


def _git() -> Finding:
    from hyperruntime.git.command import git
    from hyperruntime.host.process import find_program

    path = find_program("git")
    if path is None:
        step = "install it, on Debian with `apt-get install git`; the generate loop needs it"
        return Finding(subject="git", ok=False, detail="not on PATH", next_step=step)
    words = git(["--version"]).decode(errors="replace").split()
    return Finding(
        subject="git",
        ok=True,
        detail=f"{words[2] if len(words) > 2 else 'unknown version'} ({path})",
    )


def _memory() -> Finding:
    import psutil

    free = psutil.virtual_memory().available
    low = free < _LEAST_MEMORY
    return Finding(
        subject="memory",
        ok=None if low else True,
        detail=f"{format_size(free)} available, {os.cpu_count()} cores",
        next_step="use --parallel 1, or end programs that use the memory" if low else "",
    )


def _space(what: str, directory: Path, least: int) -> Finding:
    """Check that a directory, or its nearest existing parent, is writable and has free space."""
    place = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding(
            subject=what, ok=False, detail=f"{directory} cannot be written", next_step=_OTHER_PLACE
        )
    low = free < least
    step = f"free space in {place}, or name another directory" if low else ""
    return Finding(
        subject=what, ok=not low, detail=f"{directory}, {format_size(free)} free", next_step=step
    )
