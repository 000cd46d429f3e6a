"""Podman's images."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from hyperruntime.driver import Image
from hyperruntime.errors import EngineError, ImageBuildError, ImageError, ImageNotFoundError
from hyperruntime.host.engine_program import csv_line
from hyperruntime.host.process import ProcessResult, pid_namespace
from hyperruntime.images.older_builders import for_older_builder
from hyperruntime.images.pull_errors import SHORT_NAME, explain_pull, is_loopback, with_tag
from hyperruntime.layers.config import ImageConfig
from hyperruntime_podman.bases import get_bases
from hyperruntime_podman.edge import ask_podman, inspect_image, run_podman, stream_podman
from hyperruntime_podman.program import program

# Podman looks at all images for its cache, and fails if another process removes one of them; the
# steps that ran are in the cache then.
_CACHE_CHANGED = re.compile(rb"checking if cached image exists from a previous build: .*not known")
_PULL_FAILED = "Pull failed.\n"  # podman-hpc writes this, and exits with 0
_TIDY_S = 8.0
_ROUND_S = 0.1
_HEREDOCS = "hyperruntime-heredocs"  # the name of a build context
_LISTINGS = 5
NO_OWNERS = (
    "its files have owners for which this user has no subordinate ids; ask for some (/etc/subuid, "
    '/etc/subgid), or set ignore_chown_errors = "true" below [storage.options.overlay] in '
    "~/.config/containers/storage.conf, so that all files are root's"
)
_UNKNOWN = re.compile(r"image not known|no such image", re.IGNORECASE)
_GONE = re.compile(r"(image|layer) not known|file does not exist")  # messages of containers/storage


class PodmanImages:
    """The images of one user's Podman store."""

    def __init__(
        self,
        build_args: Callable[[], list[str]],
        on_removed: Callable[[], None] = lambda: None,
    ) -> None:
        """Call nothing yet.

        Args:
            build_args: returns the first words of a build.
            on_removed: called after an image was removed.
        """
        self._build_args = build_args
        self._on_removed = on_removed

    def exists(self, reference: str) -> bool:
        """Return whether an image with exactly this reference or full identifier exists."""
        return self._identifier(reference) != ""

    def program_of(self, reference: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the entry point and the default command of an image."""
        return ImageConfig.from_oci((inspect_image(reference) or {}).get("Config")).program

    def list(self) -> tuple[Image, ...]:
        """Return all images."""
        return tuple(_image(attrs) for attrs in listed_images())

    def remove(self, reference: str) -> None:
        """Remove a reference, and its image with the last reference.

        Raises:
            ImageNotFoundError: the image does not exist.
            EngineError: a container uses the image, or it lies in a read-only store.
        """
        if not self.exists(reference):
            raise ImageNotFoundError(reference, "`hyperrun image list` shows what there is")
        what = f"image {reference!r} cannot be removed"
        try:
            ask_podman(what, "rmi", "--", reference, verb=None)
        except EngineError as error:
            if "read-only image" not in str(error):
                raise
            why = (
                "it lies in a read-only store (`additionalimagestores` in storage.conf); remove it "
                "with the program that fills that store, such as `podman-hpc rmsqi`"
            )
            raise EngineError(f"{what}: {why}") from error
        self._on_removed()

    def load_rootfs(self, tar: Path, reference: str) -> str:
        """Make an image of one layer from a tar of a root file system; return its identifier.

        Args:
            tar: the tar file.
            reference: the name of the image.

        Raises:
            ImageError: Podman refuses the tar.
        """
        what = f"image {reference!r} cannot be made from {tar}"
        result = _run(what, "import", "--quiet", str(tar), reference)
        return result.stdout.decode().split()[-1].removeprefix("sha256:")

    def load(self, archive: Path) -> tuple[str, ...]:
        """Load an image archive; return its references.

        Raises:
            ImageError: the archive cannot be loaded.
        """
        result = _run(
            f"{archive} cannot be loaded as an image", "load", "--quiet", "--input", str(archive)
        )
        lines = result.stdout.decode().splitlines()
        names = (
            line.partition(": ")[2].strip() for line in lines if line.startswith("Loaded image")
        )
        return tuple(name for text in names for name in text.split(","))

    def save(self, reference: str, archive: Path) -> None:
        """Write an image, with its reference, to an archive that every engine can read.

        Args:
            reference: the image.
            archive: the file to write.

        Raises:
            ImageError: the image cannot be saved.
        """
        args = (
            "save",
            "--quiet",
            "--format",
            "docker-archive",
            "--output",
            str(archive),
            reference,
        )
        _run(f"image {reference!r} cannot be saved", *args)

    def pull(self, reference: str, *, on_output: Callable[[str], None]) -> str:
        """Pull an image from its registry and return its identifier.

        The credentials are those of ``podman login``. Plain HTTP is used for registries on loopback
        only.

        Args:
            reference: the image to pull.
            on_output: called with each line of output.

        Raises:
            ImagePullError: the image, the login or the registry is wrong; each has a subclass.
        """
        # Podman retries a dead registry three times and prints that; the last line is the reason.
        args = [
            "pull",
            *(["--tls-verify=false"] if is_loopback(reference) else []),
            reference,
        ]
        result = stream_podman(args, on_output)
        said, failed, _ = result.stderr.decode(errors="replace").partition(_PULL_FAILED)
        if result.exit_code != 0 or failed:
            raise explain_pull(reference, said, f"{program()} login")
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
        """Build a Containerfile with the host's network; return the image's identifier.

        Here-documents are translated, because only Podman 5 and newer read them, and not as
        BuildKit does; so are ``--link`` and symbolic modes of ``COPY``.

        Args:
            context: the build context.
            reference: the name of the image.
            containerfile: the Containerfile.
            build_args: values of its ``ARG`` instructions.
            force: ignore cached layers.
            on_output: called with each line of output.

        Raises:
            ImageBuildError: a step failed; the message ends with its last lines.
            SpecError: a form of BuildKit cannot be translated, or a base would reach this machine
                in the build.
        """
        with for_older_builder(
            containerfile, context, build_args, f"--from={_HEREDOCS} ", modes="octal"
        ) as (
            plain,
            files,
        ):
            # Docker's image format: in OCI's, Podman ignores SHELL.
            args = [*self._build_args(), "--format", "docker", "--network", "host"]
            args += ["--file", csv_line([str(plain)])]
            args += ["--tag", reference, "--pull=never", *(["--no-cache"] if force else [])]
            args += ["--build-context", f"{_HEREDOCS}={files}"] if files is not None else []
            for name, value in build_args.items():
                args += ["--build-arg", f"{name}={value}"]
            left = _LISTINGS
            while True:
                result = get_bases(plain, context, _HEREDOCS, on_output) or stream_podman(
                    [*args, str(context)], on_output, partial(_end_build, timeout_s=_TIDY_S)
                )
                left -= 1
                if not left or not _CACHE_CHANGED.search(result.stderr):
                    break
        if result.exit_code != 0:
            tail = "\n".join(result.stderr.decode(errors="replace").strip().splitlines()[-12:])
            if SHORT_NAME.search(tail):
                hint = (
                    "FROM names no registry: write docker.io/ before the name, or use "
                    "--short-names docker.io"
                )
                on_output(hint)  # the message about a failed step is made of the output
                tail += f"\n{hint}"
            raise ImageBuildError(
                f"image {reference!r} cannot be built from {containerfile}; the last lines of "
                f"the build:\n{tail}"
            )
        return self._identifier(reference)

    def _identifier(self, reference: str) -> str:
        """Return the identifier of the image with exactly this reference, or "".

        Podman's own search also finds parts of names and of identifiers. A list would take longer
        the more images there are.
        """
        wanted = {with_tag(reference), f"sha256:{reference.removeprefix('sha256:')}"}
        result = run_podman(["image", "inspect", "--", reference])
        if result.exit_code == 0:
            found = json.loads(result.stdout)
        elif _UNKNOWN.search(result.error_text):
            found = []
        else:  # not a reference, or another process removes images
            found = listed_images()
        return next(
            (str(attrs["Id"]).removeprefix("sha256:") for attrs in found if wanted & _names(attrs)),
            "",
        )


def listed_images(*store_args: str, filters: Sequence[str] = ()) -> tuple[dict[str, Any], ...]:
    """Return what Podman's list of images says.

    Args:
        store_args: the global options that name the store; none for the user's.
        filters: conditions, such as ``label=...``.

    Raises:
        EngineError: Podman does not list them.
    """
    words = (*store_args, "images", *(f"--filter={one}" for one in filters), "--format", "json")
    left = _LISTINGS
    while True:
        try:
            listed = ask_podman("images cannot be listed", *words)
            return tuple(json.loads(listed.stdout or b"[]"))
        except EngineError as error:  # Podman's list fails if an image is removed meanwhile
            left -= 1
            if not left or not _GONE.search(str(error)):
                raise
            time.sleep(0.1)


def _run(what: str, *args: str) -> ProcessResult:
    """Run a command of Podman; ``what`` is the start of the message if it fails.

    Raises:
        ImageError: the command failed.
    """
    result = run_podman(args, None)  # it may move gigabytes
    if result.exit_code != 0:
        # said by each of its readers
        is_odd = b"does not match any of the supported image formats" in result.stderr
        why = (
            "it is not an archive of `podman save` or `docker save`"
            if is_odd
            else result.error_text
        )
        if b"insufficient UIDs or GIDs" in result.stderr:
            why = NO_OWNERS
        raise ImageError(f"{what}: {why}")
    return result


def _names(attrs: Mapping[str, Any]) -> set[str]:
    """Return all names of an image: its tags, its registry digests and its full identifier."""
    listed = (
        *(attrs.get("RepoTags") or ()),
        *(attrs.get("Names") or ()),
        *(attrs.get("RepoDigests") or ()),
    )
    return {*listed, f"sha256:{str(attrs['Id']).removeprefix('sha256:')}"}


def _image(attrs: Mapping[str, Any]) -> Image:
    return Image(
        id=str(attrs["Id"]).removeprefix("sha256:"),
        references=tuple(attrs.get("RepoTags") or attrs.get("Names") or ()),
        size_bytes=int(attrs.get("Size") or 0),
        created=float(attrs.get("Created") or 0),
    )


def _end_build(pid: int, timeout_s: float) -> None:
    """Kill a build's descendants in other pid namespaces until the build itself has ended.

    Podman runs each step in a container that only the build knows. If the build is killed, the
    processes, storage and directories of that container remain. If the step is killed instead, the
    build fails and cleans up.

    Args:
        pid: pid of the build, a child of this process.
        timeout_s: seconds to wait for its end; after that the caller must kill it.
    """
    deadline = time.monotonic() + timeout_s
    ours = pid_namespace()
    with suppress(psutil.Error):  # it has ended
        program = psutil.Process(pid)
        while program.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            for child in program.children(recursive=True):
                if pid_namespace(child.pid) not in (0, ours):
                    with suppress(psutil.Error):
                        child.kill()
            time.sleep(_ROUND_S)
