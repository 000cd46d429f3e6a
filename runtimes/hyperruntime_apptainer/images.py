"""Apptainer's images: those of the store, its pulls and its builds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs

from hyperruntime.errors import ImageBuildError, ImageError
from hyperruntime.host.process import stream_process
from hyperruntime.images.pull_errors import explain_pull, is_loopback, with_tag
from hyperruntime.layers.archive import file_digest
from hyperruntime.layers.images import StoredImages
from hyperruntime.layers.sif import sif_config
from hyperruntime.layers.stepwise.builder import Base
from hyperruntime.layers.store import Store
from hyperruntime.settings.image_names import is_image_path
from hyperruntime_apptainer import build
from hyperruntime_apptainer.args import NAME
from hyperruntime_apptainer.program import program, variables

# What Apptainer says when all parts of an image are in its cache, and it begins to unpack them.
_FETCHED = "Extracting OCI image"
_LAYOUT = "cache/blob"


class ApptainerImages(StoredImages):
    """The images of one user.

    Attributes:
        starts_sif: True: Apptainer mounts a SIF.
        runs_scripts: True: it runs the scripts of ``/.singularity.d`` before each command.
        converts: True: one node of a cluster pulls and unpacks an image, because the stores of its
            nodes may be one directory.
    """

    starts_sif = True
    runs_scripts = True
    converts = True

    def __init__(self, store: Store | None = None) -> None:
        """Use a store; None means this user's own."""
        super().__init__(NAME, store)

    def _fetch(self, reference: str, directory: Path, on_output: Callable[[str], None]) -> Path:
        """Let Apptainer download an image into a cache of its own, which is of the OCI layout.

        Without user namespaces it could write elsewhere, so another program does that there.
        """
        if self._probe is not None and not self._probe().root:
            return super()._fetch(reference, directory, on_output)

        def on_line(line: str) -> None:
            on_output(line)
            if _FETCHED in line:
                raise _FetchedError

        cache = directory / "cache"
        args = pull_args(reference, str(directory / "unused"))
        with build.confined(args, directory) as (pull, env):
            try:
                own = {**env, **variables(CACHEDIR=str(cache))}
                result = stream_process(pull, on_line=on_line, cwd="/", env=own)
            except _FetchedError:  # what follows is done by this library
                return cache / _LAYOUT
        if result.exit_code != 0:
            output = result.stderr.decode(errors="replace")
            login = f"{program()} registry login --username NAME"
            raise explain_pull(reference, output, login, "docker://")
        return cache / _LAYOUT

    def _base(self, context: Path, on_output: Callable[[str], None], reference: str) -> Base:
        """Return an image that a build names; a definition file may name a SIF, or an image of
        another registry of Apptainer's.
        """
        if is_image_path(reference):
            return self._base_of(Path(reference))
        if "://" not in reference:
            return super()._base(context, on_output, reference)
        with self._store.scratch() as directory:
            sif = directory / "base.sif"
            plain = ["--no-https"] if is_loopback(reference.partition("://")[2]) else []
            args = [program(), "pull", "--disable-cache", *plain, str(sif), reference]
            with build.confined(args, directory) as (pull, env):
                result = stream_process(pull, on_line=on_output, cwd="/", env=env)
            if result.exit_code != 0:
                raise ImageBuildError(f"{reference} cannot be pulled: {result.error_text}")
            return self._base_of(sif)

    def _base_of(self, sif: Path) -> Base:
        digest = file_digest(sif)
        tree = self._store.unpacked(digest, sif)
        if not tree.is_dir():
            raise ImageError(f"there is no space to unpack {sif}; free space there")
        config = sif_config(sif)
        # Apptainer knows no triggers (ONBUILD); those of a SIF could copy any image of this user.
        more = {name: value for name, value in config.more.items() if name != "OnBuild"}
        return Base(tree=str(tree), id=digest, config=attrs.evolve(config, more=more))


class _FetchedError(Exception):
    """All parts of an image are here."""


def pull_args(reference: str, rootfs: str) -> list[str]:
    """Return the argv that pulls an image; plain HTTP is allowed for loopback only.

    Args:
        reference: the image.
        rootfs: where Apptainer would unpack it.
    """
    plain = ["--no-https"] if is_loopback(reference) else []
    return [program(), *build.BUILD, *plain, rootfs, f"docker://{with_tag(reference)}"]
