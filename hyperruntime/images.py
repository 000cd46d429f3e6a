"""Images by name: recipes that ship with the library, and what an open engine holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path

from filelock import FileLock

from hyperruntime.bootstrap import build_base_rootfs
from hyperruntime.cache import cache_directory
from hyperruntime.driver import Image, Images
from hyperruntime.errors import ImageBuildError, ImageNotFoundError, SpecError, name_hint
from hyperruntime.logs import get_logger
from hyperruntime.owner import owned_directory

log = get_logger(__name__)

PREFIX = "localhost/hyperruntime/"
BASE = "base"
PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def recipe_names() -> tuple[str, ...]:
    """Return the names of the image recipes that ship with the library."""
    folder = resources.files("hyperruntime_images")
    return tuple(sorted(entry.name for entry in folder.iterdir() if (entry / "Containerfile").is_file()))


def recipe_reference(name: str) -> str:
    """Return the reference of the image that a recipe makes.

    Raises:
        SpecError: no recipe has this name.
    """
    if name not in recipe_names():
        raise SpecError("image recipe", name, f"no recipe has this name; {name_hint(name, recipe_names())}")
    return f"{PREFIX}{name}:latest"


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
        """Load a saved image archive; return its references."""
        if not Path(archive).is_file():
            raise SpecError("archive", str(archive), "a file made by `podman save` or `docker save`")
        return self._images.load(Path(archive).absolute())

    def ensure(self, name: str, *, on_output: Callable[[str], None] | None = None) -> str:
        """Return the reference of a recipe's image, or of any image that is here; make the base image if it is missing.

        Raises:
            ImageNotFoundError: it is no recipe that can be made without a registry, and not here.
            ImageBuildError: it could not be made.
        """
        reference = recipe_reference(name) if name in recipe_names() else name
        if self.exists(reference):
            return reference
        if name == BASE or reference == f"{PREFIX}{BASE}:latest":
            return self.bootstrap(on_output=on_output)
        step = f"`hyperrun image build {name}`" if name in recipe_names() else f"`podman pull {name}`"
        raise ImageNotFoundError(reference, f"get it with {step}")

    def bootstrap(self, *, force: bool = False, on_output: Callable[[str], None] | None = None) -> str:
        """Make the base image from Debian packages, with no registry; return its reference.

        Two processes at once make one: the second waits and finds it.

        Raises:
            ImageBuildError: Debian's packages cannot be had, or mmdebstrap is missing.
        """
        reference = f"{PREFIX}{BASE}:latest"
        with _lock(BASE):
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
        on_output: Callable[[str], None] | None = None,
    ) -> str:
        """Build a recipe by its name, or any Containerfile under a name of the user's; return the reference.

        An image that exists is not built again unless ``force``. Proxy variables of the environment are
        passed on.

        Raises:
            ImageBuildError: a step failed; the message holds its last lines.
            SpecError: no such recipe or file.
        """
        if containerfile is None:
            return self._build_recipe(name, build_args or {}, force, on_output)
        path = Path(containerfile)
        if not path.is_file():
            raise SpecError("containerfile", str(path), "a file that exists")
        folder = Path(context) if context is not None else path.parent
        if not folder.is_dir():
            raise SpecError("context", str(folder), "a directory that exists")
        return self._build(folder.resolve(), name, path.resolve(), build_args or {}, force, on_output)

    def _build_recipe(
        self, name: str, build_args: Mapping[str, str], force: bool, on_output: Callable[[str], None] | None
    ) -> str:
        reference = recipe_reference(name)
        with resources.as_file(resources.files("hyperruntime_images") / name) as folder:
            return self._build(folder, reference, folder / "Containerfile", build_args, force, on_output)

    def _build(
        self,
        context: Path,
        reference: str,
        containerfile: Path,
        build_args: Mapping[str, str],
        force: bool,
        on_output: Callable[[str], None] | None,
    ) -> str:
        proxies = {name: os.environ[name] for name in PROXY_VARIABLES if name in os.environ}
        with _lock(reference):
            if force or not self.exists(reference):
                self._images.build(
                    context,
                    reference,
                    containerfile=containerfile,
                    build_args={**proxies, **build_args},
                    force=force,
                    on_output=on_output or (lambda line: None),
                )
                log.info("image built", image=reference)
        return reference


def _lock(name: str) -> FileLock:
    path = cache_directory() / f"image-{name.replace('/', '_')}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ImageBuildError(
            f"{path.parent} cannot be written: {error}; set XDG_CACHE_HOME to a directory of yours"
        ) from error
    return FileLock(path)
