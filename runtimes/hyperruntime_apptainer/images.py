"""Apptainer's images: SIF files, sandbox directories and the references in this user's store."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import attrs

from hyperruntime.driver import Image, Images
from hyperruntime.errors import EngineError, ImageBuildError, ImageError, ImageNotFoundError, SpecError
from hyperruntime.host.process import run_process, stream_process
from hyperruntime.images.containerfile_to_definition import definition_of
from hyperruntime.images.pull_errors import explain_pull, is_loopback, with_tag
from hyperruntime_apptainer import records
from hyperruntime_apptainer.archive import SavedImage, read_archive, write_archive
from hyperruntime_apptainer.args import environment
from hyperruntime_apptainer.build import NoBuilderError, build_archive, build_definition, definition_beside
from hyperruntime_apptainer.sif import BUILD, sif_from_archive, sif_from_directory, tool_environment
from hyperruntime_apptainer.store import Store, make_mount_points, unpack


@attrs.frozen(kw_only=True)
class Source:
    """The files of an image, for one container.

    Attributes:
        path: a sandbox directory, or a SIF if there is no space to unpack it.
        workdir: the working directory of its commands.
    """

    path: str
    workdir: str = "/"


class ApptainerImages:
    """The images of one user."""

    def __init__(self, store: Store | None = None) -> None:
        """Use a store; None means this user's own."""
        self._store = store or Store()

    def exists(self, reference: str) -> bool:
        """Return whether the path, or exactly this reference in the store, exists."""
        if is_path(reference):
            return os.path.isdir(reference) or os.path.isfile(reference)
        return self._store.find(reference) is not None

    def source(self, reference: str) -> Source:
        """Return the files of an image; the first call unpacks it.

        Raises:
            ImageNotFoundError: the image is not on this machine.
            ImageError: the image cannot be unpacked.
        """
        if not is_path(reference):
            entry = self._store.find(reference)
            if entry is None:
                raise ImageNotFoundError(reference, _next_step(reference))
            return Source(path=str(self._store.unpacked(entry.id, entry.sif)), workdir=entry.workdir)
        path = os.path.abspath(reference)
        if os.path.isdir(path):
            return Source(path=path)
        if not os.path.isfile(path):
            raise ImageNotFoundError(reference, "no file or directory exists at this path")
        return Source(path=str(self._store.unpacked(_file_key(path), Path(path))))

    def list(self) -> tuple[Image, ...]:
        """Return all images of the store."""
        found = []
        for e in self._store.entries():
            with suppress(FileNotFoundError):  # another process is removing it
                size = e.sif.stat().st_size
                found.append(Image(id=e.id, references=e.references, size_bytes=size, created=e.created))
        return tuple(found)

    def remove(self, reference: str) -> None:
        """Remove a reference, and its image with the last reference.

        Raises:
            ImageNotFoundError: the reference is not in the store.
            EngineError: a container uses the image, or the reference is a path (the file belongs to the user).
        """
        if is_path(reference):
            raise EngineError(f"{reference} is a file of yours, not an image of the store; remove it yourself")
        entry = self._store.find(reference)
        if entry is None:
            raise ImageNotFoundError(reference, "`hyperrun image list` shows what there is")
        users = [r.name for r in records.read_all() if entry.id in r.source.split(os.sep) and r.state() != "dead"]
        if users and len(entry.references) <= 1:
            raise EngineError(f"image {reference!r} is used by the container {users[0]}; remove the container first")
        self._store.untag(entry, reference)

    def load_rootfs(self, tar: Path, reference: str) -> str:
        """Make an image from a tar of a root file system and return its identifier; root owns all files inside.

        Args:
            tar: the tar file.
            reference: the name of the image.

        Raises:
            ImageError: the tar cannot be unpacked, or Apptainer cannot make a SIF of it.
        """

        def fill(directory: Path) -> None:
            _extract(tar, directory / "rootfs")
            sif_from_directory(directory / "rootfs", directory / "image.sif")

        return self._store.make(_digest(tar), reference, fill)

    def load(self, archive: Path) -> tuple[str, ...]:
        """Load an archive of ``podman save`` or ``docker save``, or a SIF under its file's name; return the references.

        Raises:
            ImageError: the file is not an image archive.
        """
        if _is_sif(archive):
            return (self._load_sif(archive, f"localhost/{archive.stem.lower()}:latest"),)
        saved = read_archive(archive)
        if not saved:
            raise ImageError(f"{archive} cannot be loaded as an image: it is not an image archive")
        loaded = []
        for image in saved:
            self._store.make(image.id, image.reference, partial(_fill, image), workdir=image.workdir)
            loaded.append(with_tag(image.reference))
        return tuple(loaded)

    def save(self, reference: str, archive: Path) -> None:
        """Write an image in the format of ``docker save``, in one layer, so that every engine can read it.

        Args:
            reference: an image of the store.
            archive: the file to write.

        Raises:
            ImageNotFoundError: the image is not in the store.
            ImageError: the file cannot be written, or the image cannot be unpacked.
        """
        entry = self._store.find(reference)
        if entry is None:
            raise ImageNotFoundError(reference, "`hyperrun image list` shows what there is")
        with self._store.scratch() as directory:
            unpack(entry.sif, directory / "rootfs")
            layer = _pack(directory / "rootfs", directory / "layer.tar")
            try:
                write_archive(archive, with_tag(reference), layer, _digest(layer), entry.workdir)
            except OSError as error:
                raise ImageError(f"{archive} cannot be written: {error}; name another file") from error

    def pull(self, reference: str, *, on_output: Callable[[str], None]) -> str:
        """Pull an image from its registry and return its identifier. Plain HTTP is used for loopback only.

        Args:
            reference: the image to pull.
            on_output: called with each line of output.

        Raises:
            ImagePullError: the tag does not exist, the login is refused, or the registry cannot be reached.
        """
        with self._store.lock(f"pull-{with_tag(reference)}"), self._store.scratch() as directory:
            sif = directory / "image.sif"
            result = stream_process(pull_args(reference, str(sif)), on_line=on_output, cwd="/", env=tool_environment())
            if result.exit_code != 0:
                output = result.stderr.decode(errors="replace")
                raise explain_pull(reference, output, "apptainer registry login --username NAME", "docker://")
            return self._store.make(_digest(sif), reference, partial(_move, sif))

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
        """Build an image from a Containerfile and return its identifier.

        The definition file beside the Containerfile is built if there is one. Otherwise Podman or Docker builds the
        Containerfile; without these, Apptainer builds a definition file that is generated from it.

        Args:
            context: the build context.
            reference: the name of the image.
            containerfile: the Containerfile.
            build_args: values of its ``ARG`` instructions.
            force: ignore cached layers; only used by Podman and Docker.
            on_output: called with each line of output.

        Raises:
            ImageBuildError: a step failed, or no engine here can build the Containerfile.
        """
        definition = definition_beside(containerfile)
        if definition is not None:
            return self.build_definition(
                context, reference, definition=definition, build_args=build_args, on_output=on_output
            )
        with self._store.scratch() as directory:
            archive = directory / "image.tar"
            try:
                build_archive(
                    context,
                    reference,
                    archive,
                    containerfile=containerfile,
                    build_args=build_args,
                    force=force,
                    on_output=on_output,
                    lend_base=self._lend,
                )
            except NoBuilderError as error:
                return self._build_alone(context, reference, containerfile, build_args, on_output, error)
            image = read_archive(archive)[0]
            return self._store.make(image.id, reference, partial(_fill, image), workdir=image.workdir)

    def _build_alone(
        self,
        context: Path,
        reference: str,
        containerfile: Path,
        build_args: Mapping[str, str],
        on_output: Callable[[str], None],
        why: NoBuilderError,
    ) -> str:
        """Build a Containerfile through a definition file that is generated from it."""
        try:
            with definition_of(containerfile, context, build_args, self.exists) as made, self._store.scratch() as place:
                sif = place / "image.sif"
                build_definition(made.definition, sif, made.definition.parent, {}, self._path_of_base, on_output)
                return self._store.make(_digest(sif), reference, partial(_move, sif), workdir=made.workdir)
        except SpecError as error:
            raise ImageBuildError(f"{why}; Apptainer alone cannot build it: {error}") from error

    def build_definition(
        self,
        context: Path,
        reference: str,
        *,
        definition: Path,
        build_args: Mapping[str, str],
        on_output: Callable[[str], None],
    ) -> str:
        """Build a definition file, whose base may be a reference in the store; return the image's identifier.

        Args:
            context: the working directory of the build.
            reference: the name of the image.
            definition: the definition file.
            build_args: values of its ``{{ NAME }}`` templates.
            on_output: called with each line of output.

        Raises:
            ImageBuildError: a step failed.
        """
        with self._store.scratch() as directory:
            sif = directory / "image.sif"
            build_definition(definition, sif, context, build_args, self._path_of_base, on_output)
            return self._store.make(_digest(sif), reference, partial(_move, sif))

    def _path_of_base(self, reference: str) -> str | None:
        entry = self._store.find(reference)
        return None if entry is None else str(self._store.unpacked(entry.id, entry.sif))

    def _lend(self, reference: str, images: Images) -> None:
        """Load an image of this store into another engine, if the store has it."""
        entry = self._store.find(reference)
        if entry is None:
            return
        with self._store.scratch() as directory:
            unpack(entry.sif, directory / "rootfs")
            images.load_rootfs(_pack(directory / "rootfs", directory / "rootfs.tar"), reference)

    def _load_sif(self, archive: Path, reference: str) -> str:
        def fill(directory: Path) -> None:
            shutil.copyfile(archive, directory / "image.sif")
            unpack(directory / "image.sif", directory / "rootfs")

        self._store.make(_digest(archive), reference, fill)
        return reference


def pull_args(reference: str, sif: str) -> list[str]:
    """Return the argv that pulls an image into a SIF; plain HTTP is allowed for loopback only."""
    plain = ["--no-https"] if is_loopback(reference) else []
    return [*(word for word in BUILD if word != "--silent"), *plain, sif, f"docker://{with_tag(reference)}"]


def _move(sif: Path, into: Path) -> None:
    os.rename(sif, into / "image.sif")


def _fill(image: SavedImage, directory: Path) -> None:
    sif_from_archive(image, directory / "image.sif")


def is_path(reference: str) -> bool:
    """Return whether a reference is the path of a file or directory, not the name of an image in the store."""
    return reference.startswith(("/", "./", "../")) or reference.endswith((".sif", ".sqfs"))


def _next_step(reference: str) -> str:
    ours = "/hyperruntime/" in reference
    how = "`hyperrun image bootstrap` or `hyperrun image build`" if ours else f"`hyperrun image pull {reference}`"
    return f"get it with {how}, or name a .sif file or a sandbox directory by its path"


def _pack(rootfs: Path, tar: Path) -> Path:
    args = ["tar", "--create", "--file", str(tar), "--owner=0", "--group=0", "--numeric-owner"]
    result = run_process([*args, "--directory", str(rootfs), "."], cwd="/", env=environment(os.environ))
    if result.exit_code != 0:
        raise ImageError(f"{tar} cannot be written: {result.error_text}; free space there")
    return tar


def _extract(tar: Path, rootfs: Path) -> None:
    """Unpack a tar as files of this user, without ``/dev``: a container gets its own."""
    rootfs.mkdir()
    excluded = ["--exclude=./dev/*", "--exclude=dev/*"]
    args = ["tar", "--extract", "--file", str(tar), "--directory", str(rootfs), "--anchored", *excluded]
    args += ["--no-same-owner", "--same-permissions", "--delay-directory-restore"]
    result = run_process(args, cwd="/", env=environment(os.environ))
    if result.exit_code != 0:
        raise ImageError(f"{tar} cannot be unpacked as a root file system: {result.error_text}")
    run_process(["chmod", "-R", "u+rwX", str(rootfs)], cwd="/")
    make_mount_points(rootfs)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _file_key(path: str) -> str:
    """Return a key for the current state of a file, from its path, size and modification time."""
    stat = os.stat(path)
    return hashlib.sha256(f"{os.path.realpath(path)}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()).hexdigest()


def _is_sif(path: Path) -> bool:
    with open(path, "rb") as file:
        return b"SIF_MAGIC" in file.read(64)
