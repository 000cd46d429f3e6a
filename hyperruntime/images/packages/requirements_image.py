"""The build context of an image with the packages of a requirements file.

The image is always built from wheels, without a network. pip of the host downloads them. Wheels
that do not exist are built in a container of the image `dev`, which is removed; so this machine's
certificates, proxies, index and logins, which that container gets as mounted files, are in no
layer, history, argument or label of the image, on any engine. Docker's own builder and Apptainer
have no secrets of a build that could do the same.

All that is known to be missing is in one list, before `dev` is made.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import attrs

from hyperruntime.concurrency.parallel_map import parallel_map
from hyperruntime.errors import HyperRuntimeError, ImageBuildError
from hyperruntime.host.owner import owned_directory
from hyperruntime.images.packages.network import (
    INSIDE,
    pip_settings,
    unreachable,
    without_login,
    write_settings,
)
from hyperruntime.images.packages.requirements_file import (
    Line,
    Requirements,
    read_requirements,
    write_requirements,
)
from hyperruntime.images.packages.wheels import Missing, WheelSearch, default_pip
from hyperruntime.spec import ContainerSpec, ExecResult, Mount

DEV_IMAGE = "localhost/hyperruntime/dev:latest"
_PYTHON = "3.11"  # of Debian 12
# The wheels include all dependencies, so pip need not resolve them again.
_INSTALL = f"""\
FROM {DEV_IMAGE}
COPY . /build
RUN python3 -m pip install --no-cache-dir --no-index --no-deps /build/wheels/*.whl \\
    && rm -rf /build
"""
_BUILT = "/tmp/hyperruntime-wheels"  # noqa: S108 - in the container
_WHEEL_NAME = re.compile(r"[A-Za-z0-9._+!-]+\.whl", re.ASCII)
_LOCAL_LINKS = ("--find-links /", "--find-links '/")  # as read_requirements writes them
_BUILD_S = 3600.0
_ASKED_AT_ONCE = 8
_WHY = "pip of this machine has no wheel for everything, so a container builds the rest:"
_SDIST = "`--sdist` builds them on this machine, and runs their code as you"


class Inside(Protocol):
    """A container in which wheels are built."""

    def exec(
        self,
        args: Sequence[str | bytes],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        on_output: Callable[[str, bytes], None] | None = None,
    ) -> ExecResult:
        """Run a command."""
        ...

    def get(self, source: str, target: Path) -> object:
        """Copy a directory out of it."""
        ...


Start = Callable[[ContainerSpec], AbstractContextManager[Inside]]


@attrs.frozen(kw_only=True)
class PackageBuild:
    """How the packages of a requirements file become wheels.

    Attributes:
        requirements: the requirements file.
        start: starts a container; None if wheels cannot be built in one.
        make_base: makes the image `dev` if it is missing.
        on_output: called with each line of output.
        sdist: whether missing wheels are built on this machine.
        index_url: the index in place of pip's setting; "" means the setting.
        python: the image's Python version.
        more: further packages.
    """

    requirements: Path
    start: Start | None
    make_base: Callable[[], object]
    on_output: Callable[[str], None]
    sdist: bool = False
    index_url: str = ""
    python: str = _PYTHON
    more: tuple[str, ...] = ()

    @contextmanager
    def context(self) -> Iterator[Path]:
        """Yield a build context that adds the packages to the image `dev`, which exists then.

        Raises:
            ImageBuildError: a line cannot be used, a package cannot be had, or a wheel cannot be
                built.
        """
        with owned_directory() as directory:
            folder = Path(directory) / "requirements"
            folder.mkdir()
            shutil.copyfile(self.requirements, folder / "requirements.txt")
            (folder / "Containerfile").write_text(_INSTALL)
            self.wheels(folder / "wheels")
            self.make_base()
            yield folder

    def wheels(self, target: Path) -> None:
        """Write all wheels to a new directory; the image `dev` is made only if a container must
        build some.

        Raises:
            ImageBuildError: a line cannot be used, a package cannot be had, or a wheel cannot be
                built.
        """
        wanted = read_requirements(self.requirements)
        wanted.plain += [Line(place="the recipe", text=name) for name in self.more]
        with owned_directory() as own:
            if reasons := self._collect(wanted, Path(own), target):
                why = "\n  ".join([_WHY, *reasons])
                for line in why.splitlines():
                    self.on_output(line)
                if self.start is None:
                    raise ImageBuildError(
                        f"{why}\nthis runtime starts no container for it; {_SDIST}"
                    )
                self.make_base()
                self._build_inside(wanted, Path(own), target, self.start, why)

    def _collect(self, wanted: Requirements, own: Path, wheels: Path) -> list[str]:
        """Collect the wheels on this machine; return one line for each package that must be built
        in a container.

        Raises:
            ImageBuildError: a line cannot be used, or a package cannot be had at all.
        """
        search = WheelSearch(
            requirements=wanted,
            python=self.python,
            directory=own / "search",
            on_output=self.on_output,
            index_url=self.index_url,
        )
        has_pip = search.has_pip()
        sources = _sources(wanted, pip_settings(search.pip) if has_pip and wanted.sources else {})
        builds_here = self.sdist and has_pip  # with the logins of the user's git
        hopeless = bool(wanted.problems) or (
            not builds_here and any(one.is_nowhere for one in sources)
        )
        missing = search.collect(wheels, sdist=self.sdist, only_look=hopeless) if has_pip else ()
        if builds_here and not hopeless:
            failed = {one.wanted for one in missing}
            sources = tuple(one for one in sources if one.is_nowhere and one.wanted in failed)
            unreached = {one.wanted for one in sources}
            missing = tuple(one for one in missing if one.wanted not in unreached)
        nowhere = [*wanted.problems, *(str(one) for one in (*missing, *sources) if one.is_nowhere)]
        later = [str(one) for one in (*missing, *sources) if not one.is_nowhere]
        later += [
            f"{line.shown}: only pip in the container gets this option" for line in wanted.inside
        ]
        if not has_pip:
            later.append(f"{search.pip[0]} has no pip")
        if nowhere or not search.has_index or (search.stopped and not later):
            raise ImageBuildError(
                _failure(self.requirements.name, nowhere, later, search.stopped, sdist=self.sdist)
            )
        return [*later, *([search.stopped] if search.stopped else [])]

    def _build_inside(
        self, wanted: Requirements, own: Path, wheels: Path, start: Start, why: str
    ) -> None:
        """Build the wheels in a container with the network of this machine.

        Raises:
            ImageBuildError: pip failed, or no container could be started.
        """
        settings = own / "settings"
        settings.mkdir()
        wheels.mkdir(exist_ok=True)
        known = pip_settings(default_pip())
        known |= {"index-url": self.index_url} if self.index_url else {}
        env = write_settings(settings, known, os.environ)
        shutil.move(wheels, settings / "wheels")
        lines = [line for line in wanted.plain if not line.text.startswith(_LOCAL_LINKS)]
        write_requirements([*lines, *wanted.sources, *wanted.inside], settings / "requirements.txt")
        spec = ContainerSpec(
            image=DEV_IMAGE,
            network="host",
            mounts=(Mount(source=str(settings), target=INSIDE),),
            env={"HOME": "/root"},
        )
        try:
            with start(spec) as container:
                result = container.exec(
                    _pip_wheel(), env=env, timeout_s=_BUILD_S, on_output=_by_line(self.on_output)
                )
                if result.exit_code == 0:
                    container.get(_BUILT, own / "built")
        except HyperRuntimeError as error:
            raise ImageBuildError(f"{why}\nthe container failed: {error}") from error
        if result.exit_code:
            tail = "\n".join(result.stderr.decode(errors="replace").strip().splitlines()[-12:])
            hint = "" if self.sdist else f"; {_SDIST}"
            raise ImageBuildError(
                f"{why}\npip could not build them in the container; its last "
                f"lines:\n{without_login(tail)}\nlet pip of this machine find a wheel for each "
                f"package (PIP_FIND_LINKS, docs/images.md){hint}"
            )
        _keep_wheels(own / "built", wheels)


def _sources(wanted: Requirements, settings: dict[str, str]) -> tuple[Missing, ...]:
    """Return the lines of source code, and which of them this machine cannot reach."""

    def ask(line: Line) -> Missing:
        url = re.search(r"(?:git\+)?https?://\S+", line.text)
        problem = unreachable(url[0], settings, os.environ) if url else ""
        why = problem or "source code, not a wheel"
        return Missing(wanted=line.text, place=line.place, why=why, is_nowhere=bool(problem))

    return parallel_map(_ASKED_AT_ONCE, ask, wanted.sources)


def _failure(
    file: str, nowhere: Sequence[str], later: Sequence[str], stopped: str, *, sdist: bool
) -> str:
    """Return the message with all that is missing."""
    text = [f"the packages of {file} cannot be installed"]
    if nowhere:
        text[0] += "; correct these lines, or give pip what is missing:"
        text += [f"  {reason}" for reason in nowhere]
    if later:
        text += ["these have no wheel, and would be built:", *(f"  {reason}" for reason in later)]
    if stopped:
        text.append(f"the list may have gaps: {stopped}")
    text.append(
        "let pip of this machine find a wheel for each package (PIP_FIND_LINKS, docs/images.md)"
    )
    if not sdist and later:
        text.append(f"of the packages with source code, {_SDIST}")
    return "\n".join(text)


def _pip_wheel() -> list[str]:
    args = [
        "python3",
        "-m",
        "pip",
        "wheel",
        "--no-cache-dir",
        "--no-input",
        "--disable-pip-version-check",
    ]
    return [*args, "--wheel-dir", _BUILT, "--requirement", f"{INSIDE}/requirements.txt"]


def _by_line(on_line: Callable[[str], None]) -> Callable[[str, bytes], None]:
    """Return a listener of an exec that passes on whole lines, without logins."""
    begun = {"stdout": b"", "stderr": b""}

    def listen(stream: str, chunk: bytes) -> None:
        *lines, begun[stream] = (begun[stream] + chunk).split(b"\n")
        for line in lines:
            on_line(without_login(line.decode(errors="replace").rstrip("\r")))

    return listen


def _keep_wheels(made: Path, wheels: Path) -> None:
    """Move what a container made to the build context: files with the names of wheels, and nothing
    else.

    Raises:
        ImageBuildError: there is no wheel.
    """
    shutil.rmtree(wheels, ignore_errors=True)
    wheels.mkdir()
    for path in sorted(made.iterdir()):
        if path.is_file() and not path.is_symlink() and _WHEEL_NAME.fullmatch(path.name):
            shutil.move(path, wheels / path.name)
    if not any(wheels.iterdir()):
        raise ImageBuildError(
            "the container built no wheel; the requirements file must name a package"
        )
