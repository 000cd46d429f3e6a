"""Build, pull, load and save the images of an open engine."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import posixpath
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from hyperruntime.driver import Image, Images
from hyperruntime.errors import (
    ImageBuildError,
    ImageError,
    ImageNotFoundError,
    SpecError,
    write_error,
)
from hyperruntime.host.cache_dir import cache_directory
from hyperruntime.host.owner import owned_directory
from hyperruntime.images.bootstrap import PACKAGES, build_rootfs
from hyperruntime.images.build_log import BuildLog, cannot_write
from hyperruntime.images.building.definition import SUFFIX, containerfile_of
from hyperruntime.images.dockerfile_checks import checked_dockerfile
from hyperruntime.images.packages.network import PROXY_VARIABLES, proxies
from hyperruntime.images.packages.requirements_image import PackageBuild, Start
from hyperruntime.images.pull_errors import full_name, is_local
from hyperruntime.images.recipes import (
    BASE,
    DEV,
    PREFIX,
    how_to_make,
    load_recipe,
    recipe_names,
    recipe_of,
)
from hyperruntime.logs import get_logger
from hyperruntime.settings.image_names import check_image, check_new_image, is_of_snapshots

log = get_logger(__name__)

_CONTAINERFILE = "Containerfile"
_INDEX = "PIP_INDEX_URL"
# Source: the Docker image specification 1.2 ("Combined Image JSON + Filesystem Changeset Format"),
# OCI image layout.
_MANIFESTS = frozenset({"manifest.json", "index.json"})
_WITH_NAMES = _MANIFESTS | {"repositories"}  # of Docker before 1.10
_MOST_BYTES = 1 << 26  # of a manifest
_DAMAGED = (EOFError, lzma.LZMAError, tarfile.TarError, zlib.error)
_ZSTD = b"\x28\xb5\x2f\xfd"  # Source: RFC 8878, "Magic_Number"
OnOutput = Callable[[str], None] | None


class ImageStore:
    """The images of an open engine."""

    def __init__(
        self,
        images: Images,
        refuses: Callable[[], Collection[str]] = tuple,
        start: Start | None = None,
    ) -> None:
        """Wrap a driver's images.

        Args:
            images: the driver's images.
            refuses: returns the image operations that the driver refuses, as in
                ``EngineInfo.refuses``.
            start: starts a container of the engine, in which missing wheels are built; None if it
                starts none.
        """
        self._images = images
        self._refuses = refuses
        self._start = start
        self._ask: Callable[[str], None] | None = None

    def asking(self, ask: Callable[[str], None]) -> ImageStore:
        """Return the same images; if one is missing, their :meth:`ensure` first calls ``ask`` with
        its name.
        """
        other = ImageStore(self._images, self._refuses, self._start)
        other._ask = ask
        return other

    @property
    def converts(self) -> bool:
        """Whether a pull converts or unpacks the image, which takes long: then one node of a
        cluster pulls for all.
        """
        return bool(getattr(self._images, "converts", False))

    def exists(self, reference: str) -> bool:
        """Return whether the engine has an image with exactly this reference."""
        return self._images.exists(reference)

    def identifier(self, reference: str) -> str:
        """Return the engine's identifier of an image; "" if it is not on this machine.

        It is the reference itself where the engine lists no image by this reference, such as a
        path.
        """
        known = self._known_as(reference)
        if not known:
            return ""
        return next((image.id for image in self.list() if known in image.references), known)

    def _known_as(self, reference: str) -> str:
        """Return the name under which the engine has an image, or "": Podman builds a name without
        a registry under localhost/.
        """
        names = (reference,) if "/" in reference else (reference, f"localhost/{reference}")
        return next(filter(self.exists, names), "")

    def list(self) -> tuple[Image, ...]:
        """Return every image."""
        return self._images.list()

    def remove(self, reference: str) -> None:
        """Remove a reference.

        Raises:
            ImageNotFoundError: the image is not on this machine.
            EngineError: a container uses it.
        """
        self._images.remove(reference)

    def load(self, archive: str | os.PathLike[str]) -> tuple[str, ...]:
        """Load a saved image archive; return its references.

        Raises:
            SpecError: the file does not exist.
            ImageError: the file cannot be read, is empty, does not hold an image, or has the name
                of a snapshot.
        """
        path = Path(archive).absolute()
        _check_archive(path)
        if not self.converts:  # there, snapshots are not images
            _check_names(path)
        with _lock(f"load-{path}"):
            return self._images.load(path)

    def save(self, reference: str, archive: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write an image to an archive for :meth:`load` on any machine; the file appears only when
        it is complete.

        Args:
            reference: the image.
            archive: the file to write.
            force: replace an existing file.

        Raises:
            ImageNotFoundError: the image is not on this machine.
            SpecError: the file exists, and ``force`` is false.
            StorageError: the file cannot be written.
        """
        if not self.exists(reference):
            raise ImageNotFoundError(reference, "`hyperrun image list` shows what there is")
        with new_archive(archive, force=force) as partial:
            self._images.save(reference, partial)

    def pull(self, reference: str, *, on_output: OnOutput = None) -> str:
        """Pull an image from its registry, again if its tag has moved; return the reference.

        Two processes that pull the same image at once pull it once: the second one waits. Plain
        HTTP is used only for registries on the loopback of this machine.

        Args:
            reference: the image.
            on_output: called with each line of progress.

        Raises:
            ImageNotFoundError: the reference starts with ``localhost/``, which no registry serves.
            ImagePullError: the pull failed; subclasses are an unknown image, a refused login and an
                unreachable registry.
        """
        check_new_image("image", reference)
        if is_local(reference):
            raise ImageNotFoundError(
                reference, f"no registry serves localhost/ names; {how_to_make(reference)}"
            )
        was_there = self.exists(reference)
        with _lock(f"pull-{reference}"):
            # another process may have pulled it meanwhile
            if was_there or not self.exists(reference):
                self._images.pull(reference, on_output=on_output or _ignore)
                log.info("image pulled", image=reference)
        return reference

    def ensure(self, name: str, *, on_output: OnOutput = None) -> str:
        """Return the reference of an image; build a missing recipe image if that needs no registry.

        Args:
            name: name of a recipe, or a reference.
            on_output: called with each line of progress.

        Raises:
            ImageNotFoundError: the image is not on this machine, and cannot be built without a
                registry.
            ImageBuildError: the build failed.
        """
        recipe = recipe_of(name)
        reference = recipe.reference if recipe is not None else name
        check_image("image", reference)
        if self._ask is not None and not self.identifier(reference):
            self._ask(name)
        if known := self._known_as(reference):
            return known
        if recipe is None or not recipe.needs_no_registry:
            raise ImageNotFoundError(reference, f"get it with {how_to_make(name)}")
        if recipe.name in PACKAGES:
            return self.bootstrap(recipe.name, on_output=on_output)
        return self._build_recipe(recipe.name, {}, force=False, on_output=on_output)

    def bootstrap(
        self, name: str = BASE, *, force: bool = False, on_output: OnOutput = None
    ) -> str:
        """Build the image `base`, `dev`, `science` or `torch` from Debian packages, without a
        registry; return its reference.

        Two processes at once build it once: the second one waits.

        Args:
            name: ``base``; ``dev``, which has also libstdc++, pip and apt; ``science``, which has
                numpy and scipy; or ``torch``.
            force: build it even if it exists.
            on_output: called with each line of progress.

        Raises:
            ImageBuildError: mmdebstrap is missing, or the build failed.
            UnsupportedOptionError: the engine takes no images.
            SpecError: ``name`` is none of them.
        """
        if name not in PACKAGES:
            raise SpecError(
                "image", name, f"only {', '.join(PACKAGES)} are made from Debian packages"
            )
        reference = f"{PREFIX}{name}:latest"
        with _lock(reference):
            if not force and self.exists(reference):
                return reference
            if "images.load_rootfs" in self._refuses():  # ask now: the build takes minutes
                self._images.load_rootfs(Path(os.devnull), reference)
            with owned_directory() as directory:
                tar = Path(directory, f"{name}.tar")
                build_rootfs(name, tar, on_output or _ignore)
                self._images.load_rootfs(tar, reference)
        log.info("image bootstrapped", image=reference)
        return reference

    def build(
        self,
        name: str,
        *,
        containerfile: str | os.PathLike[str] | None = None,
        context: str | os.PathLike[str] | None = None,
        short_names: str | None = None,
        build_args: Mapping[str, str] | None = None,
        force: bool = False,
        on_output: OnOutput = None,
    ) -> str:
        """Build a recipe, or a Containerfile under any name; return the reference.

        The proxy variables of the environment are passed on. The whole output is kept in a log
        file; the first line for ``on_output`` is its path.

        Args:
            name: name of a recipe, or the reference of the new image if ``containerfile`` is given.
            containerfile: a Containerfile, or a definition file if its name ends in ``.def``; None
                builds a recipe.
            context: directory that the build copies from; None for the directory of
                ``containerfile``.
            short_names: registry, such as ``docker.io``, of the base images in ``containerfile``
                that name none.
            build_args: build arguments.
            force: build the image even if it exists.
            on_output: called with each line of output.

        Raises:
            ImageBuildError: a step failed; the message has the step, its last lines and the path of
                the log file.
            SpecError: the recipe, a recipe's argument, the file or the context does not exist, or
                the engine cannot build a here-document of the file.
        """
        arguments = build_args or {}
        if containerfile is None:
            return self._build_recipe(name, arguments, force=force, on_output=on_output)
        check_image("image", name)
        path = _existing("containerfile", containerfile)
        folder = Path(context) if context is not None else path.parent
        if not folder.is_dir():
            raise SpecError("context", str(folder), "name a directory that exists")
        if short_names is not None and path.suffix == SUFFIX:
            raise SpecError("short_names", short_names, "a definition file names its registry")

        def make_context(lines: BuildLog) -> AbstractContextManager[Path]:
            return nullcontext(folder.resolve())

        return self._build_any(
            name, make_context, arguments, force, on_output, path.resolve(), short_names
        )

    def build_requirements(
        self,
        name: str,
        requirements: str | os.PathLike[str],
        *,
        build_args: Mapping[str, str] | None = None,
        sdist: bool = False,
        force: bool = False,
        on_output: OnOutput = None,
    ) -> str:
        """Build an image with the Python packages of a requirements file on top of the recipe
        `dev`; return ``name``.

        pip of the host downloads the wheels, so that the build needs neither a registry nor a
        package index. Wheels that do not exist are built in a container of `dev` with the network
        of this machine, its proxies and its certificates; none of these is left in the image.
        Before `dev` is made, one error lists all lines that cannot be used and all packages that
        cannot be had.

        Args:
            name: the reference of the new image.
            requirements: a requirements file of pip.
            build_args: ``PIP_INDEX_URL``, the index in place of pip's setting; it is not kept in
                the image.
            sdist: build missing wheels on this machine; this runs code of the packages, as the
                user.
            force: build the image even if it exists.
            on_output: called with each line of output.

        Raises:
            ImageBuildError: a line cannot be used, a package cannot be had, or a step failed.
            SpecError: the file does not exist or names no package, a build argument is unknown, or
                the name is that of a recipe.
        """
        arguments = dict(build_args or {})
        index_url = arguments.pop(_INDEX, "")
        if unknown := next((one for one in arguments if one not in PROXY_VARIABLES), None):
            raise SpecError("build argument", unknown, f"a requirements file has only {_INDEX}")
        if name in recipe_names():
            raise SpecError(
                "name", name, "it is a shipped recipe; choose another name for the image"
            )
        path = _existing("requirements", requirements)
        if not any(line.partition(b"#")[0].strip() for line in path.read_bytes().splitlines()):
            raise SpecError("requirements", str(requirements), "the file must name a package")
        # ask now: downloads take minutes
        if (force or not self._is_here(name)) and "images.build" in self._refuses():
            self.ensure(DEV)

        def context(lines: BuildLog) -> AbstractContextManager[Path]:
            return self._packages(path, lines, sdist=sdist, index_url=index_url).context()

        return self._build_any(name, context, arguments, force, on_output)

    def _packages(self, requirements: Path, lines: BuildLog, **options: Any) -> PackageBuild:  # noqa: ANN401 - attrs
        return PackageBuild(
            requirements=requirements,
            start=self._start,
            make_base=lambda: self.ensure(DEV, on_output=lines),
            on_output=lines,
            **options,
        )

    def _build_recipe(
        self, name: str, build_args: Mapping[str, str], *, force: bool, on_output: OnOutput
    ) -> str:
        recipe = load_recipe(name)
        arguments = recipe.arguments(build_args)
        if recipe.base_recipe is not None and (force or not self.exists(recipe.reference)):
            self.ensure(recipe.base_recipe, on_output=on_output)
        # not into the history of the image
        index_url = arguments.pop(_INDEX, "") if recipe.wheels_for else ""

        def context(lines: BuildLog) -> AbstractContextManager[Path]:
            def add_wheels(folder: Path, python: str) -> None:
                options = {"index_url": index_url, "python": python, "more": ("pip",)}
                self._packages(folder / "requirements.txt", lines, **options).wheels(
                    folder / "wheels"
                )

            return recipe.context(add_wheels)

        return self._build_any(recipe.reference, context, arguments, force, on_output)

    def _build_any(
        self,
        reference: str,
        make_context: Callable[[BuildLog], AbstractContextManager[Path]],
        build_args: Mapping[str, str],
        force: bool,
        on_output: OnOutput,
        file: str | Path = _CONTAINERFILE,
        short_names: str | None = None,
    ) -> str:
        """Build a file, whose path may be relative to a context that is made when it is needed;
        return the reference.
        """
        check_new_image("image", reference)
        with _lock(reference):
            if force or not self.exists(reference):
                with BuildLog(reference, on_output) as lines, make_context(lines) as folder:
                    self._build(
                        folder, reference, folder / file, build_args, lines, force, short_names
                    )
        return reference

    def _is_here(self, reference: str) -> bool:
        """Return whether a base image is on this machine; Podman keeps a name without a registry
        under localhost/.
        """
        return self.exists(reference) or self.exists(f"localhost/{reference}")

    def _build(
        self,
        context: Path,
        reference: str,
        containerfile: Path,
        build_args: Mapping[str, str],
        lines: BuildLog,
        force: bool,
        short_names: str | None,
    ) -> None:
        def with_registry(image: str) -> str:
            if short_names is None or self._is_here(image):
                return image
            return full_name(image, short_names)

        known = proxies(os.environ)
        arguments = {**known, **build_args}
        try:
            if containerfile.suffix != SUFFIX:
                with checked_dockerfile(containerfile, context, arguments, with_registry) as safe:
                    self._images.build(
                        context,
                        reference,
                        containerfile=safe,
                        build_args=arguments,
                        force=force,
                        on_output=lines,
                    )
            else:
                runs_scripts = getattr(self._images, "runs_scripts", False)
                made = containerfile_of(
                    containerfile, context, arguments, runs_scripts=runs_scripts
                )
                with made as plain:
                    self._images.build(
                        plain.parent,
                        reference,
                        containerfile=plain,
                        build_args=known,
                        force=force,
                        on_output=lines,
                    )
        except ImageBuildError as error:
            raise lines.failure(reference, error) from error
        log.info("image built", image=reference, log=str(lines.path))


def _existing(field: str, file: str | os.PathLike[str]) -> Path:
    if not Path(file).is_file():
        raise SpecError(field, str(file), "name a file that exists")
    return Path(file)


def _ignore(line: str) -> None:
    pass


@contextmanager
def _lock(name: str) -> Iterator[None]:
    """Hold the lock for one image."""
    path = cache_directory() / f"image-{hashlib.sha256(name.encode()).hexdigest()[:24]}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path.parent, error) from error
    with FileLock(path):
        yield


def _check_archive(path: Path) -> None:
    """Raise an error if a file is not a saved image; the engine checks compressed files and its own
    formats.

    Raises:
        SpecError: the file does not exist.
        ImageError: the file cannot be read, is empty, or does not hold an image.
    """
    if not path.is_file():
        raise SpecError(
            "archive",
            str(path),
            "name a file made by `hyperrun image save`, `podman save` or `docker save`",
        )
    try:
        if not path.stat().st_size:
            raise ImageError(
                f"{path} cannot be loaded as an image: it is empty; save the image again"
            )
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            found = any(member.name.removeprefix("./") in _MANIFESTS for member in tar)
    except tarfile.TarError:
        return
    except OSError as error:
        raise ImageError(f"{path} cannot be read: {error}") from error
    if not found:
        raise ImageError(
            f"{path} cannot be loaded as an image: it is a tar without an image manifest (a "
            "root file system?); create it with `hyperrun image save`, `podman save` or `docker "
            "save`"
        )


def _check_names(path: Path) -> None:
    """Raise an error if an archive gives an image the name of a snapshot, which would move.

    Raises:
        ImageError: it does, or its names cannot be read.
    """
    what = f"{path} cannot be loaded as an image"
    try:
        with path.open("rb") as file:
            if file.read(len(_ZSTD)) == _ZSTD:
                raise ImageError(f"{what}: its names cannot be read; decompress it with `zstd -d`")
            file.seek(0)
            try:
                tar = tarfile.open(fileobj=file, mode="r:*")  # noqa: SIM115 - closed below
            except tarfile.TarError:
                return  # the engine says what it is
            with tar:
                for member in tar:
                    if posixpath.normpath(f"/{member.name}").lstrip("/") in _WITH_NAMES:
                        found = tar.extractfile(member) if member.isreg() else None
                        if name := next(filter(is_of_snapshots, _words(found)), ""):
                            why = "snapshots have such names; save the image under another name"
                            raise ImageError(f"{what}: it has the name {name}; {why}")
    except (*_DAMAGED, OSError, RecursionError, ValueError) as error:
        raise ImageError(f"{what}: {error}; save the image again") from error


def _words(manifest: IO[bytes] | None) -> Iterator[str]:
    """Yield all texts in a JSON file, with its keys.

    Raises:
        ValueError: it is none.
    """
    if manifest is None:
        raise ValueError("a manifest in it is no file")
    # pairs, because another reader may take the first of two equal keys
    left = [json.loads(manifest.read(_MOST_BYTES), object_pairs_hook=list)]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, list | tuple):
            left.extend(one)


@contextmanager
def new_archive(archive: str | os.PathLike[str], *, force: bool) -> Iterator[Path]:
    """Yield a path for a file, which becomes an archive when it is complete.

    Args:
        archive: the file to write.
        force: replace an existing file.

    Raises:
        SpecError: the file exists, and ``force`` is false.
        StorageError: the file cannot be written.
    """
    path = Path(archive).absolute()
    if not force and path.exists():
        raise SpecError(
            "archive", str(archive), "name a file that does not exist yet, or set force"
        )
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        # Fail now: the engine would report an unwritable path only after minutes.
        partial.touch()
        partial.unlink()
        yield partial
        partial.replace(path)
    except OSError as error:
        raise write_error(
            f"{path} cannot be written: {error}; name a file in a writable directory", error
        ) from error
    finally:
        partial.unlink(missing_ok=True)
