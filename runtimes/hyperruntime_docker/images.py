"""The images of a Docker daemon."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from hyperruntime.driver import Image
from hyperruntime.errors import ImageBuildError, ImageError, ImageNotFoundError
from hyperruntime.images.dockerfile import read_dockerfile, write_dockerfile
from hyperruntime.images.older_builders import for_older_builder
from hyperruntime.images.pull_errors import explain_pull, with_tag
from hyperruntime.layers.config import ImageConfig
from hyperruntime_docker.build import (
    CONTAINERFILE,
    build_by_buildkit,
    buildkit_args,
    context_tar,
    has_buildkit,
    tar_of_root,
)
from hyperruntime_docker.client import Engine, said, translated

_IDENTIFIER = re.compile(r"(sha256:)?[0-9a-f]{64}")
_FROM_FILES = "--from=hyperruntime-files"
_HUB = re.compile(r"^(index\.)?docker\.io/(library/)?")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LOADED = re.compile(r"Loaded image(?: ID)?: (\S+)")


class DockerImages:
    """The images of the daemon, which all its users share."""

    def __init__(self, engine: Engine) -> None:
        """Use an engine, which connects when it is first needed."""
        self._engine = engine

    def exists(self, reference: str) -> bool:
        """Return whether an image with exactly this reference or full identifier exists."""
        return self._find(reference) is not None

    def program_of(self, reference: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the entry point and the default command of an image."""
        with translated(f"image {reference!r} cannot be inspected"):
            found = self._engine.api().inspect_image(reference)
        return ImageConfig.from_oci(found.get("Config")).program

    def list(self) -> tuple[Image, ...]:
        """Return all images."""
        with translated("images cannot be listed"):
            return tuple(_image(entry) for entry in self._engine.api(patient=True).images())

    def remove(self, reference: str) -> None:
        """Remove a reference, and its image with the last reference.

        Raises:
            ImageNotFoundError: the image does not exist.
            EngineError: a container uses the image.
        """
        if not self.exists(reference):
            raise ImageNotFoundError(reference, "`hyperrun image list` shows what there is")
        with translated(f"image {reference!r} cannot be removed"):
            self._engine.api(patient=True).remove_image(reference)

    def load_rootfs(self, tar: Path, reference: str) -> str:
        """Make an image of one layer from a tar of a root file system; return its identifier.

        Args:
            tar: the tar file.
            reference: the name of the image.

        Raises:
            EngineError: the daemon refuses the tar.
        """
        with translated(f"image {reference!r} cannot be made from {tar}"):
            self._engine.api(patient=True).import_image_from_file(
                str(tar), repository=familiar(reference)
            )
        return self._identifier(reference)

    def load(self, archive: Path) -> tuple[str, ...]:
        """Load an image archive; return its references, or its identifier if it has none.

        Raises:
            ImageError: the archive cannot be loaded.
        """
        loaded: list[str] = []
        failure = ""
        with translated(f"{archive} cannot be loaded as an image"), archive.open("rb") as file:
            for message in self._engine.api(patient=True).load_image(file):
                failure = failure or str(message.get("error", ""))
                loaded += _LOADED.findall(message.get("stream", ""))
        if failure:
            raise ImageError(f"{archive} cannot be loaded as an image: {failure}")
        return tuple(loaded)

    def save(self, reference: str, archive: Path) -> None:
        """Write an image, with its reference, to an archive that :meth:`load` and other engines can
        read.

        Args:
            reference: the image.
            archive: the file to write.

        Raises:
            EngineError: the daemon has no such image, or refused.
        """
        with translated(f"image {reference!r} cannot be saved"), archive.open("wb") as file:
            for chunk in self._engine.api(patient=True).get_image(familiar(reference)):
                file.write(chunk)

    def pull(self, reference: str, on_output: Callable[[str], None]) -> str:
        """Pull an image from its registry and return its identifier.

        The credentials are those of ``docker login``. The daemon uses plain HTTP for registries on
        loopback only.

        Args:
            reference: the image to pull.
            on_output: called with each line of output.

        Raises:
            ImagePullError: the image, the login or the registry is wrong; each has a subclass.
        """
        from docker.errors import APIError

        with translated(f"image {reference!r} cannot be pulled"):
            try:
                messages = self._engine.api(patient=True).pull(
                    familiar(reference), stream=True, decode=True
                )
                failure = _follow(messages, on_output)
            except APIError as error:
                failure = said(error)
        if failure:
            raise explain_pull(reference, failure, "docker login")
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

        Docker 23 and newer build with BuildKit, if the buildx component of the ``docker`` command
        is installed. Other daemons use their own builder, for which here-documents, ``--link`` and
        ``--chmod`` are translated.

        Args:
            context: the build context.
            reference: the name of the image.
            containerfile: the Containerfile.
            build_args: values of its ``ARG`` instructions.
            force: ignore cached layers.
            on_output: called with each line of output.

        Raises:
            ImageBuildError: a step failed.
            SpecError: a form of BuildKit cannot be translated.
        """
        with translated(f"image {reference!r} cannot be built"):
            version = str(self._engine.api().version()["Version"])
            if has_buildkit(version):
                args = buildkit_args(
                    context, familiar(reference), containerfile, build_args, force=force
                )
                failure = build_by_buildkit(args, on_output)
            else:
                failure = self._build_classic(
                    context, reference, containerfile, build_args, force, on_output
                )
        if failure:
            raise ImageBuildError(
                f"image {reference!r} cannot be built from {containerfile}: {failure.strip()}"
            )
        return self._identifier(reference)

    def _build_classic(
        self,
        context: Path,
        reference: str,
        containerfile: Path,
        build_args: Mapping[str, str],
        force: bool,
        on_output: Callable[[str], None],
    ) -> str:
        """Build by the daemon's own builder; return its error, or ""."""
        from docker.errors import APIError

        options = {
            "tag": familiar(reference),
            "buildargs": dict(build_args),
            "nocache": force,
            "network_mode": "host",
            "rm": True,
            "forcerm": True,
            "decode": True,
            "custom_context": True,
            "dockerfile": CONTAINERFILE,
        }
        api = self._engine.api(patient=True)
        made = for_older_builder(
            containerfile, context, build_args, f"{_FROM_FILES} ", modes="none"
        )
        with made as (plain, files), ExitStack() as stack:
            if files is not None:
                image = json.loads(api.import_image_from_data(tar_of_root(files)).splitlines()[-1])[
                    "status"
                ]
                stack.enter_context(_removed(api, image))
                write_dockerfile(
                    plain, read_dockerfile(plain).replace(_FROM_FILES, f"--from={image}")
                )
            try:
                tar = stack.enter_context(context_tar(context, plain))
                return _follow(api.build(fileobj=tar, **options), on_output)
            except APIError as error:
                return said(error)

    def _find(self, reference: str) -> dict[str, Any] | None:
        from docker.errors import APIError

        wanted = familiar(reference)
        with translated(f"image {reference!r} cannot be inspected"):
            try:
                found: dict[str, Any] = self._engine.api().inspect_image(wanted)
            except APIError as error:
                if error.status_code not in (400, 404):
                    raise
                return None
        names = (*(found.get("RepoTags") or ()), *(found.get("RepoDigests") or ()))
        exact = wanted in names or (
            _IDENTIFIER.fullmatch(reference) and str(found["Id"]).endswith(reference)
        )
        return found if exact else None

    def _identifier(self, reference: str) -> str:
        found = self._find(reference)
        return str(found["Id"]).removeprefix("sha256:") if found is not None else ""


def familiar(reference: str) -> str:
    """Return a reference as the daemon lists it: with a tag, and Docker Hub's names without their
    registry.

    Source: distribution/reference, "familiar" names.
    """
    reference = _HUB.sub("", reference)
    return reference if _IDENTIFIER.fullmatch(reference) else with_tag(reference)


@contextmanager
def _removed(api: Any, image: str) -> Iterator[None]:  # noqa: ANN401 - the SDK has no types
    """Remove an image after the block; if that fails, `docker image prune` removes it, because it
    has no name.
    """
    from docker.errors import APIError

    try:
        yield
    finally:
        with suppress(APIError, OSError):
            api.remove_image(image)


def _follow(messages: Iterable[Mapping[str, Any]], on_output: Callable[[str], None]) -> str:
    """Hand on the whole lines of a pull or a build; return the daemon's error, or ""."""
    failure = partial = ""
    for message in messages:
        *lines, partial = (partial + _COLOURS.sub("", str(message.get("stream", "")))).split("\n")
        for line in (*lines, _progress(message)):
            if line.strip():
                on_output(line.rstrip("\r"))
        failure = failure or str(message.get("error", ""))
    if partial.strip():
        on_output(partial)
    return failure


def _progress(message: Mapping[str, Any]) -> str:
    """Return a message of a pull as a line, or "" if it only updates a progress bar."""
    if "status" not in message or message.get("progressDetail"):
        return ""
    prefix = f"{message['id']}: " if message.get("id") else ""
    return f"{prefix}{message['status']}"


def _image(entry: Mapping[str, Any]) -> Image:
    names = (*(entry.get("RepoTags") or ()), *(entry.get("RepoDigests") or ()))
    return Image(
        id=str(entry["Id"]).removeprefix("sha256:"),
        references=tuple(
            name for name in names if not name.startswith("<none>") and "@<none>" not in name
        ),
        size_bytes=int(entry.get("Size") or 0),
        created=float(entry.get("Created") or 0),
    )
