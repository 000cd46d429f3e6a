"""A build as a list of steps: what each does to the files, and the configuration in the end.

Source: the Dockerfile reference of docs.docker.com, and of the configuration the OCI image
specification 1.1; where they are silent, the behaviour of BuildKit 0.29.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class BuildMount:
    """A mount of a ``RUN``.

    Attributes:
        kind: ``bind``, ``cache`` or ``tmpfs``.
        target: its path in the container.
        source: a path in the context, of ``bind``; the identifier of a ``cache``.
        read_only: whether the step may not write to it.
        mode: of a new ``cache``.
        owner: of a ``cache``, numbers ``USER:GROUP``; each owner has its own.
    """

    kind: str
    target: str
    source: str = ""
    read_only: bool = True
    mode: int = 0o755
    owner: str = "0:0"


@attrs.frozen(kw_only=True)
class Step:
    """A step that may change files.

    Attributes:
        line: the line of the Containerfile.
        text: the instruction, for the log and for errors.
    """

    line: int
    text: str


@attrs.frozen(kw_only=True)
class Run(Step):
    """A command in a container.

    Attributes:
        args: its argv.
        script: a program to run in place of it, of a here-document with ``#!``.
        env: its variables.
        hidden: names of variables that change no digest, such as proxies.
        workdir: its working directory, which is made if it is missing.
        user: its user, or "" for root.
        network: whether it has the network of this machine.
        mounts: what it sees besides the image.
    """

    args: tuple[str, ...]
    script: str = ""
    env: Mapping[str, str] = attrs.field(hash=False)
    hidden: frozenset[str] = frozenset()
    workdir: str
    user: str
    network: bool = True
    mounts: tuple[BuildMount, ...] = ()


@attrs.frozen(kw_only=True)
class Copy(Step):
    """Files from the context, an earlier stage or an image.

    Attributes:
        origin: number of a stage, an image, or None for the context.
        sources: patterns of paths.
        texts: new files, by their names.
        target: a path of the image; files go into it if it ends with ``/``.
        chmod: mode of the files, a number or symbolic, or "" for their own.
        chown: owner of the files, or "".
        link: whether links of the image in the target's path are replaced.
        unpacks: whether archives are unpacked.
    """

    origin: int | str | None = None
    sources: tuple[str, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    target: str
    chmod: str = ""
    chown: str = ""
    link: bool = False
    unpacks: bool = False


@attrs.frozen(kw_only=True)
class Workdir(Step):
    """A directory to make.

    Attributes:
        path: its path.
        user: its owner, or "" for root.
    """

    path: str
    user: str = ""


@attrs.frozen(kw_only=True)
class Stage:
    """A stage whose base is known.

    Attributes:
        steps: in order.
        config: the ``config`` of its OCI image configuration.
    """

    steps: tuple[Step, ...]
    config: Mapping[str, Any] = attrs.field(hash=False)
