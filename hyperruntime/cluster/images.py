"""Images on nodes: made or unpacked once for the cluster, fetched once by each node, before the node gets work."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from hyperruntime.cluster.head import Node
from hyperruntime.cluster.node_services import NodeContext
from hyperruntime.cluster.peer import Answer, Call, Handler
from hyperruntime.errors import ClusterError, EngineUnavailableError, HyperRuntimeError
from hyperruntime.images.pull_errors import is_local
from hyperruntime.images.recipes import image_reference
from hyperruntime.logs import get_logger
from hyperruntime.runtime import open_runtime

log = get_logger(__name__)

PART_BYTES = 1 << 20
_SEEN_S = 60.0  # until a file of the head is seen on a node, if their directory is shared
_LOOK_S = 0.2


class ImageService:
    """The images of one node.

    Attributes:
        handlers: ``image.ensure``, ``image.part``, ``image.save`` and ``directory``.
    """

    def __init__(self, context: NodeContext) -> None:
        """Fetch nothing yet."""
        self.handlers: Mapping[str, Handler] = {
            "image.ensure": self._ensure,
            "image.part": self._part,
            "image.save": self._save,
            "directory": _sees_directory,
        }
        self._context = context
        self._fetching: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def close(self) -> None:
        """Do nothing: what was fetched stays for other jobs."""

    async def _ensure(self, call: Call) -> Answer:
        """Return how the node has an image: ``present``, ``loaded`` or ``pulled``; or ``missing``.

        ``archive`` is a path that this node may share with the head, or ""; ``pull`` allows the registry.
        """
        reference, archive = str(call.args["reference"]), str(call.args["archive"])
        async with self._fetching[reference]:
            images = (await self._context.runtime()).images
            if await asyncio.to_thread(images.exists, reference):
                return Answer("present")
            if archive and await _is_seen(Path(archive), float(call.args["seen_s"])):
                await asyncio.to_thread(images.load, archive)
                return Answer("loaded")
            if call.args["pull"]:
                await asyncio.to_thread(images.pull, reference)
                return Answer("pulled")
        return Answer("missing")

    async def _part(self, call: Call) -> Answer:
        """Append to an archive that the head sends; after the last part, check and load it."""
        name, offset = str(call.args["digest"]), int(call.args["offset"])
        path = self._context.scratch() / f"image-{hashlib.sha256(name.encode()).hexdigest()[:32]}.tar"
        await asyncio.to_thread(_write_at, path, offset, call.body)
        if call.args["last"]:
            try:
                if await asyncio.to_thread(file_digest, path) != name:
                    raise ClusterError("an image came damaged over the connection; try again")
                await asyncio.to_thread((await self._context.runtime()).images.load, path)
            finally:
                path.unlink(missing_ok=True)
        return Answer()

    async def _save(self, call: Call) -> Answer:
        """Write an image of this node to an archive; return whether the node has it."""
        images, reference = (await self._context.runtime()).images, str(call.args["reference"])
        if not await asyncio.to_thread(images.exists, reference):
            return Answer(value=False)
        await asyncio.to_thread(images.save, reference, str(call.args["archive"]), force=True)
        return Answer(value=True)


class ImageSource:
    """Gives images of the head's machine, of a node, or of a registry to nodes; each archive is made once."""

    def __init__(self, directory: Path) -> None:
        """Make nothing yet.

        Args:
            directory: for archives. Where nodes see it they read them there, else they are sent over the connection.
        """
        self._directory = directory
        self._making: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._archives: dict[str, Path | None] = {}

    async def give(self, node: Node, image: str, others: list[Node]) -> str:
        """Make sure that a node has an image; return ``present``, ``loaded``, ``sent`` or ``pulled``.

        Args:
            node: has joined.
            image: name of a recipe, or a reference.
            others: nodes that may have the image.

        Raises:
            ClusterError: neither the head's machine nor a node has it, and no registry can.
            ImageError: it cannot be pulled or loaded.
            NodeLostError: the node was lost meanwhile.
        """
        reference = image_reference(image)
        asked = {"reference": reference, "archive": "", "pull": False, "seen_s": 0.0}
        how = (await node.peer.call("image.ensure", asked)).value
        if how == "missing" and (archive := await self._archive(reference, others)) is not None:
            asked |= {"archive": str(archive), "seen_s": _SEEN_S if await self._is_shared(node, archive) else 0.0}
            how = (await node.peer.call("image.ensure", asked)).value
            if how == "missing":
                await self._send(node, archive)
                how = "sent"
        elif how == "missing":
            if is_local(reference):
                step = f"make it on the head or on a node: `hyperrun image build` or `bootstrap`, or `load` ({image})"
                raise ClusterError(f"image {reference} is neither on the head's machine nor on a node; {step}")
            how = (await node.peer.call("image.ensure", {**asked, "pull": True})).value
        log.info("image given", node=node.name, image=reference, how=how)
        return str(how)

    async def _archive(self, reference: str, others: list[Node]) -> Path | None:
        """Return an archive of an image, made once; None if neither the head's machine nor a node has it."""
        async with self._making[reference]:
            if self._archives.get(reference) is None:
                path = self._directory / f"{hashlib.sha256(reference.encode()).hexdigest()[:32]}.tar"
                saved = await asyncio.to_thread(_save_here, reference, path)
                for node in () if saved else others:
                    try:
                        args = {"reference": reference, "archive": str(path)}
                        saved = bool((await node.peer.call("image.save", args)).value) and path.exists()
                    except HyperRuntimeError as error:
                        log.warning("image not had from node", node=node.name, error=str(error))
                    if saved:
                        break
                self._archives[reference] = path if saved else None
            return self._archives[reference]

    async def _is_shared(self, node: Node, archive: Path) -> bool:
        """Return whether a node can see the directory of an archive at all."""
        args = {"path": str(archive.parent)}
        return bool((await node.peer.call("directory", args)).value)

    async def _send(self, node: Node, archive: Path) -> None:
        digest, size = await asyncio.to_thread(file_digest, archive), archive.stat().st_size
        with archive.open("rb") as file:
            for offset in range(0, size, PART_BYTES):
                part = await asyncio.to_thread(file.read, PART_BYTES)
                args = {"digest": digest, "offset": offset, "last": offset + len(part) >= size}
                await node.peer.call("image.part", args, part)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _save_here(reference: str, path: Path) -> bool:
    """Write an image of this machine to an archive; return whether an engine here has it."""
    try:
        with open_runtime() as runtime:
            if not runtime.images.exists(reference):
                return False
            runtime.images.save(reference, path, force=True)
            return True
    except EngineUnavailableError:
        return False


async def _is_seen(path: Path, seen_s: float) -> bool:
    """Return whether a file is there, after at most ``seen_s`` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seen_s
    while not await asyncio.to_thread(path.exists):
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


def _write_at(path: Path, offset: int, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(file, data, offset)
    finally:
        os.close(file)


async def _sees_directory(call: Call) -> Answer:
    return Answer(await asyncio.to_thread(os.path.isdir, str(call.args["path"])))
