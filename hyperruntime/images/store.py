"""Images by name: recipes that ship with the library, and what an open engine holds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from hyperruntime.driver import BuildsDefinitions, Image, Images
from hyperruntime.errors import ImageBuildError, ImageNotFoundError, SpecError, StorageError
from hyperruntime.host.cache_dir import cache_directory
from hyperruntime.host.owner import owned_directory
from hyperruntime.images.bootstrap import build_base_rootfs
from hyperruntime.images.build_log import BuildLog
from hyperruntime.images.definition_to_containerfile import SUFFIX, containerfile_of
from hyperruntime.images.pull_errors import is_local
from hyperruntime.images.recipes import BASE, PREFIX, PROXY_VARIABLES, load_recipe, recipe_of
from hyperruntime.images.saved_image import check_archive
from hyperruntime.logs import get_logger

log = get_logger(__name__)

OnOutput = Callable[[str], None] | None


class ImageStore:
    """The images of an open engine."""

    def __init__(self, images: Images) -> None:
        """Wrap a driver's images."""
        self._images = images

    def exists(self, reference: str) -> bool:
        """Tell whether an image of exactly this reference is here."""
        return self._images.exists(reference)

    def list(self) -> tuple[Image, ...]:
        """Return every image."""
        return self._images.list()

    def remove(self, reference: str) -> None:
        """Remove a reference.

        Raises:
            ImageNotFoundError: it is not here.
            EngineError: a container uses it.
        """
        self._images.remove(reference)

    def load(self, archive: str | os.PathLike[str]) -> tuple[str, ...]:
        """Load a saved image archive; return its references.

        Raises:
            SpecError: there is no such file.
            ImageError: it holds no image.
        """
        path = Path(archive).absolute()
        check_archive(path)
        with _lock(f"load-{path}"):
            return self._images.load(path)

    def save(self, reference: str, archive: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write an image to an archive that :meth:`load` reads, here or elsewhere: whole, or not at all.

        Raises:
            ImageNotFoundError: the image is not here.
            SpecError: the file exists, and ``force`` was not said.
            StorageError: it cannot be written.
        """
        path = Path(archive).absolute()
        if not self.exists(reference):
            raise ImageNotFoundError(reference, "`hyperrun image list` shows what there is")
        if not force and path.exists():
            raise SpecError("archive", str(archive), "a file that does not exist yet, unless it is forced")
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            # The engine would say in its own words, after minutes, that it may not write here.
            partial.touch()
            partial.unlink()
            self._images.save(reference, partial)
            partial.replace(path)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error}; name a file in a directory of yours") from error
        finally:
            partial.unlink(missing_ok=True)

    def pull(self, reference: str, *, on_output: OnOutput = None) -> str:
        """Get an image from its registry, anew where its tag has moved; return the reference.

        Two processes at once pull once: the second waits and finds it. Plain HTTP is spoken with registries on this
        machine's loopback only.

        Raises:
            ImagePullError: its subclasses tell a wrong name or tag, a refused login and a silent registry apart.
        """
        if is_local(reference):
            raise ImageNotFoundError(reference, f"no registry serves localhost/ names; {_how_to_make(reference)}")
        with _lock(f"pull-{reference}") as waited:
            if not (waited and self.exists(reference)):
                self._images.pull(reference, on_output=on_output or _ignore)
                log.info("image pulled", image=reference)
        return reference

    def ensure(self, name: str, *, on_output: OnOutput = None) -> str:
        """Return the reference of a recipe's image, or of any image that is here.

        A recipe's image that is missing is made, where that takes no registry.

        Raises:
            ImageNotFoundError: it is no such recipe's, and not here.
            ImageBuildError: it could not be made.
        """
        recipe = recipe_of(name)
        reference = recipe.reference if recipe is not None else name
        bare = recipe is None and "/" not in reference  # which Podman builds under localhost/
        for known in (reference, f"localhost/{reference}") if bare else (reference,):
            if self.exists(known):
                return known
        if recipe is None or not recipe.needs_no_registry:
            raise ImageNotFoundError(reference, f"get it with {_how_to_make(name)}")
        if recipe.name == BASE:
            return self.bootstrap(on_output=on_output)
        return self._build_recipe(recipe.name, {}, force=False, on_output=on_output)

    def bootstrap(self, *, force: bool = False, on_output: OnOutput = None) -> str:
        """Make the base image from Debian packages, with no registry; return its reference.

        Two processes at once make one: the second waits and finds it.

        Raises:
            ImageBuildError: Debian's packages cannot be had, or mmdebstrap is missing.
        """
        reference = f"{PREFIX}{BASE}:latest"
        with _lock(reference):
            if not force and self.exists(reference):
                return reference
            with owned_directory() as directory:
                tar = Path(directory, "base.tar")
                build_base_rootfs(tar, on_output=on_output)
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
        """Build a recipe by its name, or any Containerfile under a name of the user's; return the reference.

        A ``containerfile`` whose name ends in ``.def`` is an Apptainer definition file, which every engine builds.

        An image that exists is not built again unless ``force``. Proxy variables of the environment are
        passed on. The whole output is kept in a file that ``on_output`` hears of first.

        Raises:
            ImageBuildError: a step failed; the message holds it, its last lines and the file's name.
            SpecError: no such recipe, file or argument of a recipe.
        """
        if containerfile is None:
            return self._build_recipe(name, build_args or {}, force=force, on_output=on_output)
        path = Path(containerfile)
        if not path.is_file():
            raise SpecError("containerfile", str(path), "a file that exists")
        folder = Path(context) if context is not None else path.parent
        if not folder.is_dir():
            raise SpecError("context", str(folder), "a directory that exists")
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


def _how_to_make(name: str) -> str:
    recipe = recipe_of(name)
    if recipe is not None:
        return f"`hyperrun image build {recipe.name}`"
    if is_local(name):
        return f"`hyperrun image build {name} --file ./Containerfile`, or `hyperrun image load` of an archive of it"
    if "/" not in name:  # a name that is its maker's alone more often than a registry's
        return f"`hyperrun image build {name} --file ./Dockerfile`, or `hyperrun image pull {name}`"
    return f"`hyperrun image pull {name}`"


def _ignore(line: str) -> None:
    pass


@contextmanager
def _lock(name: str) -> Iterator[bool]:
    """Hold the lock on one thing to make; yield whether another process held it before."""
    path = cache_directory() / f"image-{hashlib.sha256(name.encode()).hexdigest()[:24]}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{path.parent} cannot be written: {error}; set XDG_CACHE_HOME to a directory of yours"
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
