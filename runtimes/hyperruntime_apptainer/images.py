"""Apptainer's images: SIF files, sandbox directories and the references in this user's store."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from hyperruntime.driver import Image, Images
from hyperruntime.errors import (
    EngineError,
    ImageBuildError,
    ImageError,
    ImageNotFoundError,
    SpecError,
)
from hyperruntime.host.process import stream_process
from hyperruntime.images.containerfile_to_definition import definition_of
from hyperruntime.images.definition_rewrite import checked_definition, read_definition
from hyperruntime.images.dockerfile import read_dockerfile
from hyperruntime.images.dockerfile_bases import named_images
from hyperruntime.images.pull_errors import explain_pull, is_local, is_loopback, with_tag
from hyperruntime.spec import is_image_path
from hyperruntime_apptainer import build, records
from hyperruntime_apptainer.archive import (
    extract,
    file_digest,
    is_sif,
    pack,
    read_archive,
    sif_workdir,
    write_archive,
)
from hyperruntime_apptainer.store import Store, unpack


class ApptainerImages:
    """The images of one user.

    Attributes:
        converts: True, because a pull converts the image to a SIF.
    """

    converts = True

    def __init__(self, store: Store | None = None) -> None:
        """Use a store; None means this user's own."""
        self._store = store or Store()

    def exists(self, reference: str) -> bool:
        """Return whether the path, or exactly this reference in the store, exists."""
        if is_image_path(reference):
            return os.path.isdir(reference) or os.path.isfile(reference)
        return self._store.find(reference) is not None

    def source(self, reference: str) -> tuple[str, str]:
        """Return the files of an image, and the working directory of its commands; the first call
        unpacks it.

        The files are a sandbox directory, or a SIF if there is no space to unpack it.

        Raises:
            ImageNotFoundError: the image is not on this machine.
            ImageError: the image cannot be unpacked.
        """
        if not is_image_path(reference):
            entry = self._store.find(reference)
            if entry is None:
                raise ImageNotFoundError(reference, _next_step(reference))
            return str(self._store.unpacked(entry.id, entry.sif)), entry.workdir
        path = os.path.abspath(reference)
        if os.path.isdir(path):
            return path, "/"
        if not os.path.isfile(path):
            raise ImageNotFoundError(reference, "no file or directory exists at this path")
        return str(self._store.unpacked(_file_key(path), Path(path))), "/"

    def list(self) -> tuple[Image, ...]:
        """Return all images of the store."""
        found = []
        for e in self._store.entries():
            with suppress(FileNotFoundError):  # another process is removing it
                size = e.sif.stat().st_size
                found.append(
                    Image(id=e.id, references=e.references, size_bytes=size, created=e.created)
                )
        return tuple(found)

    def remove(self, reference: str) -> None:
        """Remove a reference, and its image with the last reference.

        Raises:
            ImageNotFoundError: the reference is not in the store.
            EngineError: a container uses the image, or the reference is a path (the file belongs to
                the user).
        """
        if is_image_path(reference):
            raise EngineError(
                f"{reference} is a file of yours, not an image of the store; remove it yourself"
            )
        entry = self._store.find(reference)
        if entry is None:
            raise ImageNotFoundError(reference, "`hyperrun image list` shows what there is")
        users = [
            r.name
            for r in records.read_all()
            if entry.id in r.source.split(os.sep) and r.state() != "dead"
        ]
        if users and len(entry.references) <= 1:
            raise EngineError(
                f"image {reference!r} is used by the container {users[0]}; remove the container "
                "first"
            )
        self._store.untag(entry, reference)

    def load_rootfs(self, tar: Path, reference: str) -> str:
        """Make an image from a tar of a root file system and return its identifier; root owns all
        files inside.

        Args:
            tar: the tar file.
            reference: the name of the image.

        Raises:
            ImageError: the tar cannot be unpacked, or Apptainer cannot make a SIF of it.
        """

        def fill(directory: Path) -> None:
            extract(tar, directory / "rootfs")
            build.make_sif(directory / "image.sif", str(directory / "rootfs"), str(tar))

        return self._store.make(file_digest(tar), reference, fill)

    def load(self, archive: Path) -> tuple[str, ...]:
        """Load an archive of ``podman save`` or ``docker save``, or a SIF under its file's name;
        return the references.

        Raises:
            ImageError: the file is not an image archive.
        """
        if _is_sif(archive):
            return (self._load_sif(archive, f"localhost/{archive.stem.lower()}:latest"),)
        saved = read_archive(archive)
        if not saved:
            why = (
                "it is not an image archive; use a SIF, or a file of `podman save` or `docker save`"
            )
            raise ImageError(f"{archive} cannot be loaded as an image: {why}")
        loaded = []
        for image in saved:
            self._store.make(
                image.id,
                image.reference,
                partial(build.sif_from_archive, image),
                workdir=image.workdir,
            )
            loaded.append(with_tag(image.reference))
        return tuple(loaded)

    def save(self, reference: str, archive: Path) -> None:
        """Write an image in the format of ``docker save``, in one layer, so that every engine can
        read it.

        Its SIF is there too, so that Apptainer does not make it again where the archive is loaded.

        Args:
            reference: an image of the store.
            archive: the file to write.

        Raises:
            ImageNotFoundError: the image is not in the store.
            ImageError: the image cannot be unpacked.
            OSError: the file cannot be written.
        """
        entry = self._store.find(reference)
        if entry is None:
            raise ImageNotFoundError(reference, "`hyperrun image list` shows what there is")
        with self._store.scratch() as directory:
            layer = pack(entry.sif, directory)
            write_archive(archive, with_tag(reference), layer, entry.workdir, entry.sif)

    def pull(self, reference: str, *, on_output: Callable[[str], None]) -> str:
        """Pull an image from its registry and return its identifier. Plain HTTP is used for
        loopback only.

        Args:
            reference: the image to pull.
            on_output: called with each line of output.

        Raises:
            ImagePullError: the tag does not exist, the login is refused, or the registry cannot be
                reached.
        """
        with self._store.lock(f"pull-{with_tag(reference)}"), self._store.scratch() as directory:
            sif = directory / "image.sif"
            with build.confined(pull_args(reference, str(sif)), directory) as (args, env):
                result = stream_process(args, on_line=on_output, cwd="/", env=env)
            if result.exit_code != 0:
                output = result.stderr.decode(errors="replace")
                raise explain_pull(
                    reference, output, "apptainer registry login --username NAME", "docker://"
                )
            return self._store.make(
                file_digest(sif), reference, partial(_move, sif), workdir=sif_workdir(sif)
            )

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

        Podman or Docker builds it; without these, Apptainer builds a definition file that is
        generated from it.

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
        builder, why_none = build.find_builder()
        if builder is None:
            return self._build_alone(
                context, reference, containerfile, build_args, on_output, why_none
            )
        with closing(builder), self._store.scratch() as directory:
            for named in named_images(read_dockerfile(containerfile)):
                if "$" not in named.reference and not builder.images.exists(named.reference):
                    self._lend(named.reference, builder.images)
            builder.images.build(
                context,
                reference,
                containerfile=containerfile,
                build_args=build_args,
                force=force,
                on_output=on_output,
            )
            builder.images.save(reference, directory / "image.tar")
            image = read_archive(directory / "image.tar")[0]
            return self._store.make(
                image.id, reference, partial(build.sif_from_archive, image), workdir=image.workdir
            )

    def _build_alone(
        self,
        context: Path,
        reference: str,
        containerfile: Path,
        build_args: Mapping[str, str],
        on_output: Callable[[str], None],
        why: str,
    ) -> str:
        """Build a Containerfile through a definition file that is generated from it."""
        try:
            with definition_of(
                containerfile, context, build_args, partial(self._workdir_of, on_output)
            ) as made:
                return self.build_definition(
                    made.path.parent,
                    reference,
                    definition=made.path,
                    build_args=made.build_args,
                    on_output=on_output,
                    workdir=made.workdir,
                )
        except SpecError as error:
            raise ImageBuildError(
                f"no engine on this machine can build {containerfile} ({why}), and Apptainer "
                f"alone cannot: {error}; write a .def file and name it, or build it elsewhere "
                "and use `hyperrun image load`"
            ) from error

    def build_definition(
        self,
        context: Path,
        reference: str,
        *,
        definition: Path,
        build_args: Mapping[str, str],
        on_output: Callable[[str], None],
        workdir: str = "/",
    ) -> str:
        """Build a definition file, whose base may be a reference in the store; return the image's
        identifier.

        The image keeps the definition file without the values of build arguments.

        Args:
            context: the working directory of the build.
            reference: the name of the image.
            definition: the definition file.
            build_args: values of its ``{{ NAME }}`` templates; names that it does not use are
                ignored.
            on_output: called with each line of output.
            workdir: the working directory of the image's commands.

        Raises:
            ImageBuildError: a step failed; the message ends with its last lines.
            SpecError: the file is invalid, or would run a program of this machine or read files
                outside ``context``.
        """
        text = read_definition(definition)
        checked = checked_definition(text, context, build_args, self._path_of_base)
        has_values = any(
            re.search(r"\{\{\s*" + re.escape(name) + r"\s*\}\}", text) for name in build_args
        )
        with self._store.scratch() as directory:
            try:
                sif = build.sif_from_definition(
                    directory, checked, text if has_values else checked, context, on_output
                )
            except ImageBuildError as error:
                raise ImageBuildError(
                    f"{definition} cannot be built; the last lines of the build:\n{error}"
                ) from error
            return self._store.make(
                file_digest(sif), reference, partial(_move, sif), workdir=workdir
            )

    def _workdir_of(self, on_output: Callable[[str], None], base: str) -> str:
        """Return the working directory of a base image, which is pulled if it is not in the store.

        Raises:
            ImageNotFoundError: the image has no registry, and is not in the store.
            ImagePullError: it cannot be pulled.
        """
        if not is_image_path(base) and self._store.find(base) is None and not is_local(base):
            self.pull(base, on_output=on_output)
        return self.source(base)[1]

    def _path_of_base(self, reference: str) -> str | None:
        entry = self._store.find(reference)
        return None if entry is None else str(self._store.unpacked(entry.id, entry.sif))

    def _lend(self, reference: str, images: Images) -> None:
        """Load an image of this store into another engine, if the store has it."""
        entry = self._store.find(reference)
        if entry is None:
            return
        with self._store.scratch() as directory:
            images.load_rootfs(pack(entry.sif, directory), reference)

    def _load_sif(self, archive: Path, reference: str) -> str:
        def fill(directory: Path) -> None:
            shutil.copyfile(archive, directory / "image.sif")
            unpack(directory / "image.sif", directory / "rootfs")

        self._store.make(file_digest(archive), reference, fill, workdir=sif_workdir(archive))
        return reference


def pull_args(reference: str, sif: str) -> list[str]:
    """Return the argv that pulls an image into a SIF; plain HTTP is allowed for loopback only."""
    plain = ["--no-https"] if is_loopback(reference) else []
    return ["apptainer", *build.BUILD, *plain, sif, f"docker://{with_tag(reference)}"]


def _move(sif: Path, into: Path) -> None:
    os.rename(sif, into / "image.sif")


def _next_step(reference: str) -> str:
    ours = "/hyperruntime/" in reference
    how = (
        "`hyperrun image bootstrap` or `hyperrun image build`"
        if ours
        else f"`hyperrun image pull {reference}`"
    )
    return f"get it with {how}, or name a .sif file or a sandbox directory by its path"


def _file_key(path: str) -> str:
    """Return a key for the current state of a file, from its path, size and modification time."""
    stat = os.stat(path)
    return hashlib.sha256(
        f"{os.path.realpath(path)}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()
    ).hexdigest()


def _is_sif(path: Path) -> bool:
    with open(path, "rb") as file:
        return is_sif(file.read(64))
