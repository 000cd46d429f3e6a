"""Let ``apptainer`` pull images, with nothing of this machine to write to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from hyperruntime.host.owner import owned_directory
from hyperruntime.host.process import python_args
from hyperruntime.host.temporary import scratch_directory
from hyperruntime.images.packages.network import proxies
from hyperruntime_apptainer import read_only_host
from hyperruntime_apptainer.args import environment
from hyperruntime_apptainer.program import PROGRAMS, variables

# Without the user's cache: two concurrent builds can corrupt it.
BUILD = ("build", "--force", "--sandbox")
_CREDENTIALS = ("DOCKER_USERNAME", "DOCKER_PASSWORD")
_KEPT = (
    *(f"{name.upper()}_{one}" for name in PROGRAMS for one in _CREDENTIALS),
    *("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)


@contextmanager
def confined(args: Sequence[str], *writable: Path) -> Iterator[tuple[list[str], Mapping[str, str]]]:
    """Yield the argv and the environment of an ``apptainer`` that can write only to some
    directories.

    The environment is the user's, without variables that change Apptainer's behaviour.

    Args:
        args: its argv.
        *writable: the directories; a private one for temporary files is added.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.lower().endswith("_proxy")
    }
    kept |= proxies(os.environ)
    with owned_directory(root=Path(scratch_directory())) as scratch:
        own = {**variables(TMPDIR=scratch), "TMPDIR": scratch}
        places = map(str, (*writable, scratch))
        confining = python_args("-I", "-S", read_only_host.__file__)
        yield (
            [*confining, *places, "--", *args],
            MappingProxyType({**environment(os.environ), **kept, **own}),
        )
