"""Write Dockerfiles for builders that know less than BuildKit: Podman's, Docker's own before 23,
and Apptainer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hyperruntime.host.owner import owned_directory
from hyperruntime.images.copied_files import BuildContext, Modes, older_copy
from hyperruntime.images.dockerfile import parse_dockerfile, read_dockerfile, write_dockerfile
from hyperruntime.images.heredocs import translate


@contextmanager
def for_older_builder(
    containerfile: Path, context: Path, build_args: Mapping[str, str], prefix: str, *, modes: Modes
) -> Iterator[tuple[Path, Path | None]]:
    """Yield a Containerfile without here-documents, ``--link`` and symbolic modes, and the files
    that it copies.

    A file that has none of these is yielded as it is, with None.

    Args:
        containerfile: the file to translate.
        context: the build context.
        build_args: values for ``ARG``.
        prefix: put before the path of each file to copy, which is relative to the directory of
            these files.
        modes: the modes of ``--chmod`` that the builder knows; others are given to the files
            before.

    Raises:
        SpecError: an exact translation does not exist.
    """
    text = read_dockerfile(containerfile)
    with owned_directory() as directory:
        payload = Path(directory) / "files"
        payload.mkdir()
        plain = translate(text, payload, build_args, prefix) if "<<" in text else text
        if "--link" in plain or "--chmod" in plain:
            files = BuildContext(context, containerfile)
            lines: list[str] = []
            for each in parse_dockerfile(plain):
                lines += older_copy(each, files, payload, prefix, modes=modes)
            plain = "".join(lines)
        if plain == text:
            yield containerfile, None
            return
        made = Path(directory) / "Containerfile"
        write_dockerfile(made, plain)
        yield made, payload
