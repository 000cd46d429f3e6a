"""The images of a driver that starts containers from a directory: paths, and this user's store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.driver import EngineInfo, Image
from hyperruntime.errors import (
    FULL,
    EngineError,
    ImageBuildError,
    ImageError,
    ImageNotFoundError,
    ImagePullError,
    StorageError,
    UnsupportedOptionError,
    write_error,
)
from hyperruntime.host.inherited import own_runtime_directory, program_environment
from hyperruntime.host.process import find_program, stream_process
from hyperruntime.images.building.context import Context
from hyperruntime.images.building.read import Containerfile
from hyperruntime.images.dockerfile import read_dockerfile
from hyperruntime.images.dockerfile_checks import check_triggers
from hyperruntime.images.pull_errors import explain_pull, is_local, is_loopback, with_tag
from hyperruntime.layers.archive import ImageArchive, SavedImage, file_digest, pack, write_archive
from hyperruntime.layers.blobs import archive_errors, opened
from hyperruntime.layers.config import ImageConfig
from hyperruntime.layers.overlays import COPY, mounting_program
from hyperruntime.layers.owners import has_all_ids
from hyperruntime.layers.records import user_of
from hyperruntime.layers.sif import is_sif, sif_config
from hyperruntime.layers.snapshots.named import named_users_of
from hyperruntime.layers.stepwise.builder import Base, ImageBuild, Means, platform_arguments
from hyperruntime.layers.store import ROOTFS, Entry, Store, unpack_or_keep
from hyperruntime.layers.unpack import unpack_layers
from hyperruntime.settings.image_names import is_image_path


@attrs.frozen(kw_only=True)
class ImageSource:
    """What a container is started from.

    Attributes:
        files: the directory of the image's files; a SIF if there is no space to unpack it and the
            driver can start it.
        env: the image's variables.
        workdir: the working directory of its commands.
        user: the user of its commands, or "" for root.
    """

    files: str
    env: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    workdir: str = "/"
    user: str = ""


class StoredImages:
    """The images of one user: trees in a store, and directories and SIF files by their paths.

    Attributes:
        starts_sif: whether the driver can start a SIF that is not unpacked.
    """

    starts_sif = False

    def __init__(
        self,
        engine: str,
        store: Store | None = None,
    ) -> None:
        """Use a store.

        Args:
            engine: the driver's name.
            store: the store; None means this user's own.
        """
        self._engine = engine
        self._store = store or Store()

        self._start: Callable[..., Any] | None = None
        self._probe: Callable[[], EngineInfo] | None = None

    def use(self, start: Callable[..., Any], probe: Callable[[], EngineInfo]) -> None:
        """Set what builds need; see :class:`~hyperruntime.driver.BuildsInContainers`."""
        self._start = start
        self._probe = probe

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
        """Build a checked Containerfile in containers of the engine; return the image's identifier.

        Args:
            context: the build context.
            reference: the name of the image.
            containerfile: the Containerfile.
            build_args: values of its ``ARG`` instructions.
            force: whether to run the steps of earlier builds again.
            on_output: called with each line of output.

        Raises:
            ImageBuildError: a step failed.
            SpecError: an instruction is invalid, or not supported.
            ImageNotFoundError: a base is not on this machine, and no registry has it.
            UnsupportedOptionError: the engine has no snapshots here.
        """
        assert self._start is not None
        assert self._probe is not None
        info = self._probe()
        if not info.snapshots:
            why = "it can mount no overlay here; `hyperrun doctor` says why"
            raise UnsupportedOptionError(self._engine, "images.build", why)
        if not info.root:
            why = (
                "commands of a container are not root here; build it on another machine, and load it "
                "with `hyperrun image load`"
            )
            raise UnsupportedOptionError(self._engine, "images.build", why)
        means = Means(
            engine=self._engine,
            start=self._start,
            users=has_all_ids(),
            overlay=info.storage != COPY,
            program=mounting_program(info.storage),
            store=self._store,
            base=partial(self._base, context, on_output),
        )
        file = Containerfile(read_dockerfile(containerfile), build_args, platform_arguments())
        sources = Context(context, containerfile)
        build = ImageBuild(means, sources, file, force=force, on_output=on_output)
        try:
            return build.run(reference)
        except StorageError:
            raise
        except OSError as error:
            step = "; free space there" if error.errno in FULL else ""
            why = f"the image cannot be built: {error}{step}"
            raise write_error(why, error) from error

    def _base(self, context: Path, on_output: Callable[[str], None], reference: str) -> Base:
        """Return an image that a build names; it is pulled if it is not in the store."""
        if not self.exists(reference) and not is_local(reference):
            try:
                self.pull(reference, on_output=on_output)
            except ImagePullError as error:
                raise ImageBuildError(str(error)) from error
        entry = self._entry(reference, _next_step(reference))
        files = self._store.tree(entry)
        if not files.is_dir():
            raise ImageError(f"there is no space to unpack {files}; free space there")
        check_triggers(reference, entry.config.more.get("OnBuild", ()), context)
        return Base(tree=str(files), id=entry.id, config=entry.config)

    def exists(self, reference: str) -> bool:
        """Return whether the path, or exactly this reference in the store, exists."""
        if is_image_path(reference):
            return os.path.isdir(reference) or os.path.isfile(reference)
        return self._store.find(reference) is not None

    def source(self, reference: str, tree: str = "", *, mounts: bool = False) -> ImageSource:
        """Return what a container of an image is started from; the first call unpacks a packed one.

        Args:
            reference: the image.
            tree: that of a snapshot, whichever image has the reference now; "" means the image's.
            mounts: whether the container mounts an image of one file.

        Raises:
            ImageNotFoundError: the image is not on this machine.
            ImageError: the image cannot be unpacked.
        """
        if is_image_path(reference):
            path = Path(os.path.abspath(reference))
            config = _config_of(path)
            files = path if path.is_dir() else self._store.unpacked(_file_key(str(path)), path)
        else:
            entry = self._entry_of(reference, tree)
            config = entry.config
            files = Path(tree) if tree else self._store.tree(entry, mounts=mounts)
        if not files.is_dir() and not self.starts_sif:
            raise ImageError(f"there is no space to unpack {files}; free space there")
        return ImageSource(
            files=tree or str(files), env=config.env, workdir=config.workdir, user=config.user
        )

    def config(self, reference: str, tree: str) -> ImageConfig:
        """Return what the image of a snapshot says about its commands; arguments and errors are
        those of :meth:`source`.
        """
        if is_image_path(reference):
            return _config_of(Path(reference))
        return self._entry_of(reference, tree).config

    def program_of(self, reference: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the entry point and the default command of an image."""
        return self.config(reference, "").program

    def list(self) -> tuple[Image, ...]:
        """Return all images of the store."""
        return tuple(
            Image(id=e.id, references=e.references, size_bytes=e.size_bytes, created=e.created)
            for e in self._store.entries()
        )

    def remove(self, reference: str) -> None:
        """Remove a reference, and its image with the last reference.

        Raises:
            ImageNotFoundError: the reference is not in the store.
            EngineError: a container or a snapshot uses the image, or the reference is a path (the
                file belongs to the user).
        """
        if is_image_path(reference):
            raise EngineError(
                f"{reference} is a file of yours, not an image of the store; remove it yourself"
            )
        entry = self._entry(reference)
        # its identifier removes all names
        is_last = with_tag(reference) not in entry.references or len(entry.references) <= 1
        user = is_last and (user_of(entry.id) or next(named_users_of(entry.id), ""))
        if user:
            raise EngineError(f"image {reference!r} is used by {user}")
        self._store.untag(entry, reference)

    def load_rootfs(self, tar: Path, reference: str) -> str:
        """Make an image from a tar of a root file system and return its identifier.

        Args:
            tar: the tar file.
            reference: the name of the image.

        Raises:
            ImageError: the tar cannot be unpacked.
        """

        def fill(directory: Path) -> None:
            with archive_errors(tar, directory):
                layer = partial(opened, tar, directory)
                unpack_layers(directory / ROOTFS, [layer])

        return self._store.make(file_digest(tar), reference, fill)

    def load(self, archive: Path) -> tuple[str, ...]:
        """Load an archive of ``podman save`` or ``docker save``, an OCI archive, or a SIF under its
        file's name; return the references.

        Raises:
            ImageError: the file is not an image archive, is hostile, or is damaged.
        """
        if is_sif(archive):
            reference = f"localhost/{archive.stem.lower()}:latest"
            fill = partial(unpack_or_keep, archive)
            self._store.make(file_digest(archive), reference, fill, sif_config(archive))
            return (reference,)
        return tuple(self._load_all(archive))

    def save(self, reference: str, archive: Path) -> None:
        """Write an image in the format of ``docker save``, in one layer, so that every engine can
        read it.

        Args:
            reference: an image of the store.
            archive: the file to write.

        Raises:
            ImageNotFoundError: the image is not in the store.
            ImageError: the image cannot be packed.
            OSError: the file cannot be written.
        """
        entry = self._entry(reference)
        with self._store.scratch() as directory:
            layer = self._packed(entry, directory)
            write_archive(archive, with_tag(reference), layer, entry.config)

    def pull(self, reference: str, *, on_output: Callable[[str], None]) -> str:
        """Pull an image from its registry and return its identifier. Plain HTTP is used for
        loopback only.

        Args:
            reference: the image to pull.
            on_output: called with each line of output.

        Raises:
            ImagePullError: the tag does not exist, the login is refused, or the registry cannot be
                reached.
            UnsupportedOptionError: there is no program here that pulls images.
        """
        with self._store.lock(f"pull-{with_tag(reference)}"), self._store.scratch() as directory:
            fetched = self._fetch(reference, directory, on_output)
            (identifier,) = self._load_all(fetched, reference).values()
            return identifier

    def _fetch(self, reference: str, directory: Path, on_output: Callable[[str], None]) -> Path:
        """Write an image of a registry to an archive; return its path."""
        if not has_puller():
            why = (
                "it pulls images by `skopeo`, which is not on PATH; install it, or load an archive "
                "with `hyperrun image load`"
            )
            raise UnsupportedOptionError(self._engine, "images.pull", why)
        archive = directory / "image.tar"
        # without this, it looks for logins in a directory that root's Podman may have made
        own = own_runtime_directory(os.environ) or str(directory)
        env = {**program_environment(os.environ), "XDG_RUNTIME_DIR": own}
        args = pull_args(reference, archive)
        result = stream_process(args, on_line=on_output, cwd="/", env=env)
        if result.exit_code != 0:
            raise explain_pull(reference, result.stderr.decode(errors="replace"), "skopeo login")
        return archive

    def _load_all(self, archive: Path, reference: str | None = None) -> dict[str, str]:
        """Load the images of an archive, under another name than its own if there is one; return
        the identifiers by reference.
        """
        loaded = {}
        with (
            self._store.scratch() as scratch,
            archive_errors(archive, self._store.root),
            ImageArchive(archive, scratch) as saved,
        ):
            for image in saved.images:
                name = with_tag(reference or image.reference)
                fill = partial(_unpack, saved, image)
                loaded[name] = self._store.make(image.id, name, fill, image.config)
        return loaded

    def _packed(self, entry: Entry, directory: Path) -> Path:
        """Write the files of an image to a tar; return its path."""
        files = self._store.tree(entry)
        if not files.is_dir():
            raise ImageError(f"there is no space to unpack {entry.path}; free space there")
        return pack(files, directory / "rootfs.tar")

    def _entry_of(self, reference: str, tree: str) -> Entry:
        """Return the image that a tree of the store belongs to, else the one with a reference."""
        return self._store.of_tree(tree) or self._entry(reference, _next_step(reference))

    def _entry(
        self, reference: str, step: str = "`hyperrun image list` shows what there is"
    ) -> Entry:
        entry = self._store.find(reference)
        if entry is None:
            raise ImageNotFoundError(reference, step)
        return entry


def has_puller() -> bool:
    """Return whether a program is here that pulls images without an engine."""
    return find_program("skopeo") is not None


def pull_args(reference: str, archive: Path) -> list[str]:
    """Return the argv that pulls an image into an OCI archive; plain HTTP is allowed for loopback
    only.
    """
    plain = ["--src-tls-verify=false"] if is_loopback(reference) else []
    return ["skopeo", "copy", *plain, f"docker://{with_tag(reference)}", f"oci-archive:{archive}"]


def _unpack(saved: ImageArchive, image: SavedImage, directory: Path) -> None:
    saved.unpack(image, directory / ROOTFS)


def _config_of(path: Path) -> ImageConfig:
    if path.is_dir():
        return ImageConfig()
    if not path.is_file():
        raise ImageNotFoundError(str(path), "no file or directory exists at this path")
    return sif_config(path)


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
    status = os.stat(path)
    return hashlib.sha256(
        f"{os.path.realpath(path)}\0{status.st_size}\0{status.st_mtime_ns}".encode()
    ).hexdigest()
