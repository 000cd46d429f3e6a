"""Podman's images: podman-py for what exists, the command line for what streams (build, import, load, save, pull)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hyperruntime.driver import Image
from hyperruntime.errors import EngineError, ImageBuildError, ImageError, ImageNotFoundError
from hyperruntime.host.build_processes import end_inner
from hyperruntime.host.process import ProcessResult, stream_process
from hyperruntime.images.pull_errors import explain_pull, is_loopback
from hyperruntime_podman.args import csv_line
from hyperruntime_podman.edge import environment, require_program, run_podman
from hyperruntime_podman.service import PodmanService

_TIDY_S = 8.0
_LISTINGS = 5
_GONE = re.compile(r"(image|layer) not known|file does not exist")  # as containers/storage says it


class PodmanImages:
    """The images of one user's Podman store."""

    def __init__(self, service: PodmanService, base_args: Callable[[], list[str]]) -> None:
        """Use a service that is started on first need."""
        self._service, self._base_args = service, base_args

    def exists(self, reference: str) -> bool:
        """Tell whether an image of exactly this reference, or of this whole identifier, is here."""
        return self._identifier(reference) != ""

    def list(self) -> tuple[Image, ...]:
        """Return every image."""
        return tuple(_image(attrs) for attrs in self._listed())

    def remove(self, reference: str) -> None:
        """Remove a reference."""
        if not self.exists(reference):
            raise ImageNotFoundError(reference, "`hyperrun image list` shows what there is")
        what = f"image {reference!r} cannot be removed"
        self._service.call(what, lambda client: client.images.remove(reference))

    def load_rootfs(self, tar: Path, reference: str) -> str:
        """Make an image of one layer from a root file system's tar."""
        result = run_podman(["podman", "import", "--quiet", str(tar), reference])
        if result.exit_code != 0:
            raise ImageError(f"{tar} cannot be made the image {reference!r}: {result.error_text}")
        return result.stdout.decode().split()[-1].removeprefix("sha256:")

    def load(self, archive: Path) -> tuple[str, ...]:
        """Load a saved image archive."""
        result = run_podman(["podman", "load", "--quiet", "--input", str(archive)])
        if result.exit_code != 0:
            raise ImageError(f"{archive} cannot be loaded as an image: {_load_failure(result)}")
        lines = result.stdout.decode().splitlines()
        names = (line.partition(": ")[2].strip() for line in lines if line.startswith("Loaded image"))
        return tuple(name for text in names for name in text.split(","))

    def save(self, reference: str, archive: Path) -> None:
        """Write an image, with its reference, to an archive of the form that every engine reads.

        Raises:
            ImageNotFoundError: it is not here.
        """
        if not self.exists(reference):
            raise ImageNotFoundError(reference, "`hyperrun image list` shows what there is")
        args = ["podman", "save", "--quiet", "--format", "docker-archive", "--output", str(archive), reference]
        result = run_podman(args)
        if result.exit_code != 0:
            raise ImageError(f"image {reference!r} cannot be saved: {result.error_text}")

    def pull(self, reference: str, *, on_output: Callable[[str], None]) -> str:
        """Get an image from its registry; return its identifier. Credentials are those of ``podman login``.

        Raises:
            ImagePullError: its subclasses say whether the image, the login or the registry is wrong.
        """
        require_program()
        # Podman retries a dead registry three times and says so; the last line is the reason.
        args = ["podman", "pull", *(["--tls-verify=false"] if is_loopback(reference) else []), reference]
        result = stream_process(args, on_line=on_output, cwd="/", env=environment())
        if result.exit_code != 0:
            raise explain_pull(reference, result.stderr.decode(errors="replace"), "podman login")
        return self._identifier(reference)

    def build(
        self,
        context: Path,
        reference: str,
        *,
        containerfile: Path,
        build_args: Mapping[str, str],
        force: bool,
        on_output: Callable[[str], None],
    ) -> str:
        """Build a Containerfile with the host's network; its steps run under this machine's lawful limits."""
        args = [
            *self._base_args(),
            "build",
            "--network",
            "host",
            "--file",
            csv_line([str(containerfile)]),
            "--tag",
            reference,
        ]
        args += ["--pull=missing", *(["--no-cache"] if force else [])]
        for name, value in build_args.items():
            args += ["--build-arg", f"{name}={value}"]
        require_program()
        result = stream_process(
            [*args, str(context)],
            on_line=on_output,
            cwd="/",
            env=environment(),
            before_kill=partial(end_inner, timeout_s=_TIDY_S),
        )
        if result.exit_code != 0:
            tail = "\n".join(result.stderr.decode(errors="replace").strip().splitlines()[-12:])
            raise ImageBuildError(f"image {reference!r} was not built from {containerfile}; its last lines:\n{tail}")
        return self._identifier(reference)

    def _listed(self) -> tuple[Mapping[str, Any], ...]:
        for attempt in range(_LISTINGS):
            try:
                return self._service.call(
                    "images cannot be listed", lambda client: tuple(i.attrs for i in client.images.list())
                )
            except EngineError as error:  # Podman's list fails when one of them is removed meanwhile
                if not _GONE.search(str(error)) or attempt == _LISTINGS - 1:
                    raise
                time.sleep(0.1)
        raise AssertionError

    def _identifier(self, reference: str) -> str:
        wanted = {with_tag(reference), f"sha256:{reference.removeprefix('sha256:')}"}
        return next((_image(attrs).id for attrs in self._listed() if wanted & _names(attrs)), "")


def _load_failure(result: ProcessResult) -> str:
    """Return why an archive was refused; of one that is none Podman tells what each of its readers says."""
    if "does not match any of the supported image formats" in result.stderr.decode(errors="replace"):
        return "it is no archive made by `podman save` or `docker save`"
    return result.error_text


def with_tag(reference: str) -> str:
    """Return a reference with the tag it means: ``latest`` when it names neither tag nor digest."""
    name = reference.rpartition("/")[2]
    return reference if ":" in name or "@" in name else f"{reference}:latest"


def _names(attrs: Mapping[str, Any]) -> set[str]:
    """Return all that an image is known by: its tags, its registry's digests, its whole identifier."""
    listed = (*(attrs.get("RepoTags") or ()), *(attrs.get("Names") or ()), *(attrs.get("RepoDigests") or ()))
    return {*listed, f"sha256:{str(attrs['Id']).removeprefix('sha256:')}"}


def _image(attrs: Mapping[str, Any]) -> Image:
    created = attrs.get("Created")
    return Image(
        id=str(attrs["Id"]).removeprefix("sha256:"),
        references=tuple(attrs.get("RepoTags") or attrs.get("Names") or ()),
        size_bytes=int(attrs.get("Size") or 0),
        created=float(created) if isinstance(created, (int, float)) else 0.0,
    )
