"""Make SIF files with ``apptainer build``, and find another engine that can build
Containerfiles.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from hyperruntime import registry
from hyperruntime.concurrency.closing import closing_descriptor
from hyperruntime.driver import Driver
from hyperruntime.errors import HyperRuntimeError, ImageBuildError, ImageError
from hyperruntime.host.engine_program import csv_line
from hyperruntime.host.owner import owned_directory
from hyperruntime.host.process import python_args, run_process, stream_process
from hyperruntime.images.packages.network import proxies
from hyperruntime_apptainer import read_only_host
from hyperruntime_apptainer.archive import SavedImage, extract_sif, write_single
from hyperruntime_apptainer.args import environment
from hyperruntime_apptainer.scratch import scratch_directory

# Several times faster than the default; the file is a tenth larger.
_FAST = ("--mksquashfs-args", "-comp gzip -Xcompression-level 1")
# Without the cache: two concurrent builds can corrupt it.
BUILD = ("build", "--disable-cache", "--force", *_FAST)
_CREDENTIALS = (
    "APPTAINER_DOCKER_USERNAME",
    "APPTAINER_DOCKER_PASSWORD",
    "DOCKER_CONFIG",
    "REGISTRY_AUTH_FILE",
)
_KEPT = ("SSL_CERT_FILE", "SSL_CERT_DIR", *_CREDENTIALS)
_AS_ROOT = ("--fakeroot", "--ignore-subuid")
_TAIL_LINES = 12
BUILDERS = ("podman", "docker")


@contextmanager
def confined(args: Sequence[str], *writable: Path) -> Iterator[tuple[list[str], Mapping[str, str]]]:
    """Yield the argv and the environment of ``apptainer build`` that can write only to some
    directories.

    The environment is the user's, without variables that change Apptainer's behaviour.

    Args:
        args: argv of the build.
        *writable: the directories; a private one for temporary files is added.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.lower().endswith("_proxy")
    }
    kept |= proxies(os.environ)
    with owned_directory(root=Path(scratch_directory())) as scratch:
        own = {"APPTAINER_TMPDIR": scratch, "TMPDIR": scratch}
        places = map(str, (*writable, scratch))
        program = python_args("-I", "-S", read_only_host.__file__)
        yield (
            [*program, *places, "--", *args],
            MappingProxyType({**environment(os.environ), **kept, **own}),
        )


def sif_from_archive(image: SavedImage, directory: Path) -> None:
    """Write one image of an archive to ``image.sif``, converted unless the archive has a SIF.

    Args:
        image: the image.
        directory: takes the SIF, and a temporary archive.

    Raises:
        ImageError: Apptainer failed, or the archive is damaged.
    """
    if image.has_sif:
        extract_sif(image, directory / "image.sif")
        return
    path = image.path
    if image.entry is not None:
        path = directory / "one.tar"
        write_single(image, path)
    make_sif(
        directory / "image.sif",
        f"{image.kind}:{path}",
        f"the image {image.reference} of {image.path}",
    )


def make_sif(sif: Path, source: str, what: str, *options: str) -> None:
    """Make a SIF of a directory or an archive.

    Args:
        sif: the file to write.
        source: the directory, or the kind and the path of the archive.
        what: the source, for the error message.
        *options: more options of the build.

    Raises:
        ImageError: Apptainer failed.
    """
    with confined(["apptainer", "--silent", *BUILD, *options, str(sif), source], sif.parent) as (
        args,
        env,
    ):
        result = run_process(args, cwd="/", env=env)
    if result.exit_code != 0 or not sif.is_file():
        raise ImageError(f"{what} cannot be converted to a SIF: {result.error_text}")


def sif_from_definition(
    directory: Path, text: str, kept: str, context: Path, on_output: Callable[[str], None]
) -> Path:
    """Build a checked definition file; return the SIF.

    Apptainer keeps the definition file in the image. If another text must be kept there, the build
    makes a directory first, and the SIF is made of it after the text was replaced.

    Args:
        directory: takes the SIF and temporary files.
        text: the definition file.
        kept: the definition file that the image keeps.
        context: the working directory of the build.
        on_output: called with each line of output.

    Raises:
        ImageBuildError: a step failed; the message has its last lines.
        ImageError: the directory cannot be converted.
    """
    definition = directory / "container.def"
    sif = directory / "image.sif"
    rootfs = directory / "rootfs"
    definition.write_text(text)
    target = [str(sif)] if kept == text else ["--sandbox", str(rootfs)]
    build = ["apptainer", *BUILD, *own_temporary(directory), *_AS_ROOT, *target, str(definition)]
    with confined(build, directory) as (args, env):
        result = stream_process(args, on_line=on_output, cwd=context, env=env)
    if result.exit_code != 0 or not Path(target[-1]).exists():
        raise ImageBuildError(
            "\n".join(result.stderr.decode(errors="replace").strip().splitlines()[-_TAIL_LINES:])
        )
    if kept != text:
        _replace_stored(rootfs, kept)
        make_sif(sif, str(rootfs), "the built image", "--notest", *_AS_ROOT)
    return sif


def _replace_stored(rootfs: Path, text: str) -> None:
    """Replace the definition file that a built directory keeps; its links are not followed.

    Raises:
        ImageBuildError: a step replaced the directory of the metadata.
    """
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        with closing_descriptor(os.open(rootfs / ".singularity.d", flags)) as metadata:
            os.unlink("Singularity", dir_fd=metadata)
            new = os.open(
                "Singularity", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=metadata
            )
            with os.fdopen(new, "w") as file:
                file.write(text)
    except OSError as error:
        raise ImageBuildError(
            f"a step of the build replaced /.singularity.d of the image: {error.strerror}"
        ) from error


def own_temporary(place: Path) -> list[str]:
    """Return the options that hide the host's temporary directories from the steps of a build.

    Args:
        place: takes the directories that the steps get instead.
    """
    options = []
    for number, target in enumerate(("/tmp", "/var/tmp")):  # noqa: S108 - in the image
        directory = place / f"temporary-{number}"
        directory.mkdir()
        directory.chmod(0o1777)
        options += [
            "--mount",
            csv_line(["type=bind", f"source={directory}", f"destination={target}"]),
        ]
    return options


def find_builder() -> tuple[Driver | None, str]:
    """Return the first driver of an engine that can build Containerfiles and works here; or None
    and the reasons.
    """
    reasons = []
    for name in BUILDERS:
        try:
            driver = registry.load_driver(name)
            driver.probe()
        except HyperRuntimeError as error:
            reasons.append(str(error))
            continue
        return driver, ""
    return None, "; ".join(reasons)
