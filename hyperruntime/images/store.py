"""Build, pull, load and save the images of an open engine."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from hyperruntime.driver import BuildsDefinitions, Image, Images
from hyperruntime.errors import ImageBuildError, ImageError, ImageNotFoundError, SpecError, StorageError
from hyperruntime.host.cache_dir import cache_directory
from hyperruntime.host.owner import owned_directory
from hyperruntime.images.bootstrap import build_base_rootfs
from hyperruntime.images.build_log import BuildLog
from hyperruntime.images.definition_to_containerfile import SUFFIX, containerfile_of
from hyperruntime.images.pull_errors import is_local
from hyperruntime.images.recipes import BASE, PREFIX, PROXY_VARIABLES, load_recipe, recipe_of
from hyperruntime.logs import get_logger

log = get_logger(__name__)

OnOutput = Callable[[str], None] | None
# Source: the Docker image specification 1.2 ("Combined Image JSON + Filesystem Changeset Format"), OCI image layout.
_MANIFESTS = frozenset({"manifest.json", "index.json"})


class ImageStore:
    """The images of an open engine."""

    def __init__(self, images: Images) -> None:
        """Wrap a driver's images."""
        self._images = images

    def exists(self, reference: str) -> bool:
        """Return whether the engine has an image with exactly this reference."""
        return self._images.exists(reference)

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
            ImageError: the file cannot be read, is empty, or does not hold an image.
        """
        path = Path(archive).absolute()
        _check_archive(path)
        with _lock(f"load-{path}"):
            return self._images.load(path)

    def save(self, reference: str, archive: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write an image to an archive for :meth:`load` on any machine; the file appears only when it is complete.

        Args:
            reference: the image.
            archive: the file to write.
            force: replace an existing file.

        Raises:
            ImageNotFoundError: the image is not on this machine.
            SpecError: the file exists, and ``force`` is false.
            StorageError: the file cannot be written.
        """
        path = Path(archive).absolute()
        if not self.exists(reference):
            raise ImageNotFoundError(reference, "`hyperrun image list` shows what there is")
        if not force and path.exists():
            raise SpecError("archive", str(archive), "name a file that does not exist yet, or set force")
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            # Fail now: the engine would report an unwritable path only after minutes.
            partial.touch()
            partial.unlink()
            self._images.save(reference, partial)
            partial.replace(path)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error}; name a file in a writable directory") from error
        finally:
            partial.unlink(missing_ok=True)

    def pull(self, reference: str, *, on_output: OnOutput = None) -> str:
        """Pull an image from its registry, again if its tag has moved; return the reference.

        Two processes that pull the same image at once pull it once: the second one waits. Plain HTTP is used only for
        registries on the loopback of this machine.

        Args:
            reference: the image.
            on_output: called with each line of progress.

        Raises:
            ImageNotFoundError: the reference starts with ``localhost/``, which no registry serves.
            ImagePullError: the pull failed; subclasses are an unknown image, a refused login and an unreachable
                registry.
        """
        if is_local(reference):
            raise ImageNotFoundError(reference, f"no registry serves localhost/ names; {_how_to_make(reference)}")
        with _lock(f"pull-{reference}") as waited:
            if not (waited and self.exists(reference)):
                self._images.pull(reference, on_output=on_output or _ignore)
                log.info("image pulled", image=reference)
        return reference

    def ensure(self, name: str, *, on_output: OnOutput = None) -> str:
        """Return the reference of an image; build a missing recipe image if that needs no registry.

        Args:
            name: name of a recipe, or a reference.
            on_output: called with each line of progress.

        Raises:
            ImageNotFoundError: the image is not on this machine, and cannot be built without a registry.
            ImageBuildError: the build failed.
        """
        recipe = recipe_of(name)
        reference = recipe.reference if recipe is not None else name
        bare = recipe is None and "/" not in reference  # Podman builds it under localhost/
        for known in (reference, f"localhost/{reference}") if bare else (reference,):
            if self.exists(known):
                return known
        if recipe is None or not recipe.needs_no_registry:
            raise ImageNotFoundError(reference, f"get it with {_how_to_make(name)}")
        if recipe.name == BASE:
            return self.bootstrap(on_output=on_output)
        return self._build_recipe(recipe.name, {}, force=False, on_output=on_output)

    def bootstrap(self, *, force: bool = False, on_output: OnOutput = None) -> str:
        """Build the base image from Debian packages, without a registry; return its reference.

        Two processes at once build it once: the second one waits.

        Args:
            force: build it even if it exists.
            on_output: called with each line of progress.

        Raises:
            ImageBuildError: mmdebstrap is missing, or the build failed.
        """
        reference = f"{PREFIX}{BASE}:latest"
        with _lock(reference):
            if not force and self.exists(reference):
                return reference
            with owned_directory() as directory:
                tar = Path(directory, "base.tar")
                build_base_rootfs(tar, on_output or _ignore)
                self._images.load_rootfs(tar, reference)
        log.info("image bootstrapped", image=reference)
        return reference

    def build(
        self,
        name: str,
        *,
        containerfile: str | os.PathLike[str] | None = None,
        context: str | os.PathLike[str] | None = None,
        build_args: Mapping[str, str] | None = None,
        force: bool = False,
        on_output: OnOutput = None,
    ) -> str:
        """Build a recipe, or a Containerfile under any name; return the reference.

        The proxy variables of the environment are passed on. The whole output is kept in a log file; the first line
        for ``on_output`` is its path.

        Args:
            name: name of a recipe, or the reference of the new image if ``containerfile`` is given.
            containerfile: a Containerfile, or a definition file if its name ends in ``.def``; None builds a recipe.
            context: directory that the build copies from; None for the directory of ``containerfile``.
            build_args: build arguments.
            force: build the image even if it exists.
            on_output: called with each line of output.

        Raises:
            ImageBuildError: a step failed; the message has the step, its last lines and the path of the log file.
            SpecError: the recipe, a recipe's argument, the file or the context does not exist.
        """
        if containerfile is None:
            return self._build_recipe(name, build_args or {}, force=force, on_output=on_output)
        path = Path(containerfile)
        if not path.is_file():
            raise SpecError("containerfile", str(path), "name a file that exists")
        folder = Path(context) if context is not None else path.parent
        if not folder.is_dir():
            raise SpecError("context", str(folder), "name a directory that exists")
        with _lock(name):
            if force or not self.exists(name):
                with BuildLog(name, on_output) as lines:
                    self._build(folder.resolve(), name, path.resolve(), build_args or {}, lines, force)
        return name

    def _build_recipe(self, name: str, build_args: Mapping[str, str], *, force: bool, on_output: OnOutput) -> str:
        recipe = load_recipe(name)
        arguments = recipe.arguments(build_args)
        with _lock(recipe.reference):
            if not force and self.exists(recipe.reference):
                return recipe.reference
            if recipe.base_recipe is not None:
                self.ensure(recipe.base_recipe, on_output=on_output)
            with BuildLog(recipe.reference, on_output) as lines, recipe.context(lines) as folder:
                self._build(folder, recipe.reference, folder / "Containerfile", arguments, lines, force)
        return recipe.reference

    def _build(
        self,
        context: Path,
        reference: str,
        containerfile: Path,
        build_args: Mapping[str, str],
        lines: BuildLog,
        force: bool,
    ) -> None:
        proxies = {name: os.environ[name] for name in PROXY_VARIABLES if name in os.environ}
        arguments = {**proxies, **build_args}
        try:
            if containerfile.suffix != SUFFIX:
                self._images.build(
                    context, reference, containerfile=containerfile, build_args=arguments, force=force, on_output=lines
                )
            elif isinstance(self._images, BuildsDefinitions):
                self._images.build_definition(
                    context, reference, definition=containerfile, build_args=arguments, on_output=lines
                )
            else:
                with containerfile_of(containerfile, context, arguments) as made:
                    self._images.build(
                        made.parent, reference, containerfile=made, build_args=proxies, force=force, on_output=lines
                    )
        except ImageBuildError as error:
            raise lines.failure(reference, error) from error
        log.info("image built", image=reference, log=str(lines.path))


def _check_archive(path: Path) -> None:
    """Raise an error if a file is not a saved image; the engine checks compressed files and its own formats."""
    if not path.is_file():
        raise SpecError(
            "archive", str(path), "name a file made by `hyperrun image save`, `podman save` or `docker save`"
        )
    try:
        if not path.stat().st_size:
            raise ImageError(f"{path} cannot be loaded as an image: it is empty; save the image again")
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            found = any(member.name.removeprefix("./") in _MANIFESTS for member in tar)
    except tarfile.TarError:
        return
    except OSError as error:
        raise ImageError(f"{path} cannot be read: {error}") from error
    if not found:
        raise ImageError(
            f"{path} cannot be loaded as an image: it is a tar without an image manifest (a root file system?); "
            "create it with `hyperrun image save`, `podman save` or `docker save`"
        )


def _how_to_make(name: str) -> str:
    recipe = recipe_of(name)
    if recipe is not None:
        return f"`hyperrun image build {recipe.name}`"
    if is_local(name):
        return f"`hyperrun image build {name} --file ./Containerfile`, or load an archive with `hyperrun image load`"
    if "/" not in name:  # more often a locally built image than one of a registry
        return f"`hyperrun image build {name} --file ./Dockerfile`, or `hyperrun image pull {name}`"
    return f"`hyperrun image pull {name}`"


def _ignore(line: str) -> None:
    pass


@contextmanager
def _lock(name: str) -> Iterator[bool]:
    """Hold the lock for one image; yield whether another process held it before."""
    path = cache_directory() / f"image-{hashlib.sha256(name.encode()).hexdigest()[:24]}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{path.parent} cannot be written: {error}; set XDG_CACHE_HOME to a writable directory"
        ) from error
    lock, waited = FileLock(path), False
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waited = True
        lock.acquire()
    try:
        yield waited
    finally:
        lock.release()
