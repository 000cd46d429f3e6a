"""Images on nodes: made or unpacked once for the cluster, fetched once by each node, before the
node gets work.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

from hyperruntime.cluster.head import Node
from hyperruntime.cluster.job_directory import SEEN_S
from hyperruntime.cluster.node_services import NodeContext
from hyperruntime.errors import (
    ClusterError,
    EngineUnavailableError,
    HyperRuntimeError,
    UnsupportedOptionError,
)
from hyperruntime.images.pull_errors import is_local
from hyperruntime.images.recipes import image_reference, recipe_of
from hyperruntime.images.store import ImageStore
from hyperruntime.logs import get_logger
from hyperruntime.runtime import open_runtime
from hyperruntime.wire.checks import Line
from hyperruntime.wire.peer import Answer, Call, Handler

log = get_logger(__name__)

_SHARED = "start the head in a directory that all nodes see"
_LOOK_S = 0.2


class ImageService:
    """The images of one node.

    Attributes:
        handlers: ``image.ensure`` and ``image.save``.
    """

    def __init__(self, context: NodeContext) -> None:
        """Fetch nothing yet."""
        self.handlers: Mapping[str, Handler] = {
            "image.ensure": self._ensure,
            "image.save": self._save,
        }
        self._context = context
        self._fetching: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def close(self) -> None:
        """Do nothing: what was fetched stays for other jobs."""

    async def _ensure(self, call: Call) -> Answer:
        """Return how this node has an image, as a :class:`_Found`.

        ``ids`` are the identifiers that the image may have, by engine. If the node has another one:
        ``archive`` is a path in the directory that this node shares with the head, or ""; ``pull``
        allows the registry; else ``make`` is the recipe to make it from, or "".
        """
        reference = str(call.args["reference"])
        async with self._fetching[reference]:
            runtime = await self._context.runtime()
            images = runtime.images
            found = await asyncio.to_thread(images.identifier, reference)
            ids = call.args["ids"].get(runtime.name)
            how = "present" if found and (not ids or found in ids) else ""
            if not how and (how := await _fetch(images, call.args)):
                found = await asyncio.to_thread(images.identifier, reference)
        said = {"engine": runtime.name, "converts": images.converts, "id": found, "how": how}
        return Answer(said)

    async def _save(self, call: Call) -> Answer:
        """Write an image of this node to an archive; return the node's engine, or "" if the node
        does not have it.
        """
        runtime = await self._context.runtime()
        reference = str(call.args["reference"])
        if not await asyncio.to_thread(runtime.images.exists, reference):
            return Answer({"engine": ""})
        await asyncio.to_thread(
            runtime.images.save, reference, str(call.args["archive"]), force=True
        )
        return Answer({"engine": runtime.name})


async def _fetch(images: ImageStore, args: Mapping[str, Any]) -> str:
    """Fetch an image by the means that are given; return which one it was, or ""."""
    if archive := args["archive"]:
        if not await _is_seen(Path(archive), SEEN_S):
            raise ClusterError(f"{archive} is not seen on this node; {_SHARED}")
        await asyncio.to_thread(images.load, archive)
        return "loaded"
    if args["pull"]:
        await asyncio.to_thread(images.pull, args["reference"])
        return "pulled"
    if args["make"]:
        await asyncio.to_thread(images.ensure, args["make"])
        return "made"
    return ""


@attrs.frozen(kw_only=True)
class _Found:
    """Answer of a node about an image.

    Attributes:
        engine: name of the node's engine.
        converts: whether a pull converts images.
        id: its identifier of the image; "" if it does not have it.
        how: how it has the cluster's image; "" if it does not.
    """

    engine: str = attrs.field(validator=Line(100))
    converts: bool
    id: str = attrs.field(validator=Line(1000))
    how: Literal["present", "loaded", "pulled", "made", ""]


@attrs.frozen(kw_only=True)
class _Saved:
    """The answer of ``image.save``: the engine that wrote an archive, or "" if none did."""

    engine: str = attrs.field(validator=Line(100))


@attrs.define(eq=False)
class _Known:
    """State of one image on the nodes, as the head knows it.

    Attributes:
        image: name of a recipe, or a reference.
        here: engine and identifier on the head's machine; None if it does not have it.
        ids: the identifiers that the cluster's image has, by engine.
        nodes: nodes that have it, with their engines.
        archives: archives of it, by the engine that wrote them.
        filled: engines for which a node already got the image.
        asked: engines whose nodes were asked for an archive of their own.
    """

    image: str
    here: tuple[str, str] | None
    ids: dict[str, set[str]] = attrs.field(factory=dict)
    nodes: dict[Node, str] = attrs.field(factory=dict)
    archives: dict[str, Path] = attrs.field(factory=dict)
    filled: set[str] = attrs.field(factory=set)
    asked: set[str] = attrs.field(factory=set)
    making: asyncio.Lock = attrs.field(factory=asyncio.Lock)
    first: defaultdict[str, asyncio.Lock] = attrs.field(factory=lambda: defaultdict(asyncio.Lock))

    @property
    def reference(self) -> str:
        """The image's reference."""
        return image_reference(self.image)

    def accepts(self, found: _Found) -> bool:
        """Return whether the image of a node is the cluster's; the first one of an engine is."""
        return found.id != "" and (
            found.id in (known := self.ids.get(found.engine, set())) or not known
        )

    def add(self, node: Node, found: _Found) -> None:
        """Note that a node has the image."""
        self.ids.setdefault(found.engine, set()).add(found.id)
        self.nodes[node] = found.engine


class ImageSource:
    """Gives images of the head's machine, of a node, or of a registry to nodes; each archive is
    made once.

    All nodes get the same image: the head's, or that of the first node that has it. A node whose
    engine has another one under the same name gets the cluster's. Identifiers of different engines
    are not compared.
    """

    def __init__(self, directory: Path) -> None:
        """Make nothing yet.

        Args:
            directory: for archives; nodes must see it.
        """
        self._directory = directory
        self._known: dict[str, asyncio.Task[_Known]] = {}
        self._giving: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def give(self, node: Node, image: str, others: list[Node]) -> str:
        """Make sure that a node has an image; return ``present``, ``loaded``, ``pulled`` or
        ``made``.

        The first node of an engine gets it alone. Then the others look again, because they may
        share its store.

        Args:
            node: has joined.
            image: name of a recipe, or a reference.
            others: nodes that may have the image.

        Raises:
            ClusterError: neither the head's machine nor a node has it, and it can be neither pulled
                nor made.
            ImageError: it cannot be pulled, loaded or made.
            NodeLostError: the node was lost meanwhile.
        """
        async with self._giving[node.name, image]:  # several pools may want it
            return await self._give(node, image, others)

    async def _give(self, node: Node, image: str, others: list[Node]) -> str:
        known = await self._look(image)
        found = await _ask(node, known)
        how: str = found.how
        if how:
            known.add(node, found)
        else:
            async with known.first[found.engine]:
                is_first = found.engine not in known.filled
                if is_first:
                    how = await self._fill(node, known, others)
                    known.filled.add(found.engine)
            if not is_first:
                how = await self._fill(node, known, others)
        log.info("image given", node=node.name, image=known.reference, how=how)
        return how

    async def _look(self, image: str) -> _Known:
        """Return what is known of an image; the first call looks for it on the head's machine."""
        if image not in self._known:

            async def look() -> _Known:
                here = await asyncio.to_thread(_identify_here, image_reference(image))
                return _Known(image, here, {} if here is None else {here[0]: {here[1]}})

            self._known[image] = asyncio.ensure_future(look())
        return await asyncio.shield(self._known[image])

    async def _fill(self, node: Node, known: _Known, others: list[Node]) -> str:
        """Give a node the image, unless it has it by now; return how it came."""
        found = await _ask(node, known)
        if not found.how:
            found = await self._bring(node, known, others, found)
            # the registry has another one by now
            if found.how == "pulled" and not known.accepts(found):
                found = await self._bring(node, known, list(known.nodes), found)
            if found.how != "loaded" and not known.accepts(found):
                log.warning("image differs", node=node.name, image=known.reference, id=found.id)
        known.add(node, found)
        return found.how

    async def _bring(self, node: Node, known: _Known, others: list[Node], found: _Found) -> _Found:
        reference = known.reference
        if (archive := await self._archive(known, others, found)) is not None:
            return await _ask(node, known, archive=str(archive))
        if found.id:
            return attrs.evolve(found, how="present")
        if not is_local(reference):
            return await _ask(node, known, pull=True)
        recipe = recipe_of(known.image)
        if recipe is None or not recipe.needs_no_registry:
            step = f"make it on the head or on a node: `hyperrun image build`, or `load` ({known.image})"
            raise ClusterError(
                f"image {reference} is neither on the head's machine nor on a node; {step}"
            )
        return await _ask(node, known, make=known.image)

    async def _archive(self, known: _Known, others: list[Node], found: _Found) -> Path | None:
        """Return an archive of an image for a node; None if neither the head's machine nor a node
        has it.

        The first node of an engine may get another engine's archive, and convert it. The other
        nodes of that engine get the converted image, so that nothing is converted twice. Otherwise
        nodes that pull an image at the same time ask its registry, not each other.
        """
        engine = found.engine
        async with known.making:
            if not known.archives:
                asks_nodes = is_local(known.reference) or (
                    found.converts and engine in known.filled
                )
                same_first = sorted(known.nodes, key=lambda node: known.nodes[node] != engine)
                having = dict.fromkeys([*(same_first if asks_nodes else ()), *others])
                await self._save(known, [None, *having])
            elif engine in known.filled and engine not in known.asked | known.archives.keys():
                # once: nodes that do not share the directory cannot give one
                known.asked.add(engine)
                await self._save(
                    known, [node for node, its in known.nodes.items() if its == engine]
                )
            return known.archives.get(engine) or next(iter(known.archives.values()), None)

    async def _save(self, known: _Known, places: Sequence[Node | None]) -> None:
        """Let the first place that has an image and can do so write an archive; None is the head's
        machine.
        """
        for node in places:
            name = hashlib.sha256(f"{known.reference} {len(known.archives)}".encode()).hexdigest()[
                :32
            ]
            path = self._directory / f"{name}.tar"
            reference = known.reference
            if node is None:
                if known.here is not None and await asyncio.to_thread(_save_here, reference, path):
                    known.archives[known.here[0]] = path
                    return
                continue
            try:
                args = {"reference": reference, "archive": str(path)}
                saved = (await node.peer.ask(_Saved, "image.save", args)).engine
            except HyperRuntimeError as error:
                log.warning("image not saved by node", node=node.name, error=str(error))
                continue
            if saved and await _is_seen(path, SEEN_S):
                known.archives[saved] = path
                return


async def _ask(
    node: Node, known: _Known, archive: str = "", *, pull: bool = False, make: str = ""
) -> _Found:
    """Ask a node for an image, which it may fetch by the means that are given."""
    ids = {engine: sorted(found) for engine, found in known.ids.items()}
    asked = {"reference": known.reference, "archive": archive, "pull": pull, "make": make}
    return await node.peer.ask(_Found, "image.ensure", {**asked, "ids": ids})


def _identify_here(reference: str) -> tuple[str, str] | None:
    """Return the engine of this machine and its identifier of an image; None if it lacks the engine
    or the image.
    """
    try:
        with open_runtime() as runtime:
            found = runtime.images.identifier(reference)
            return (runtime.name, found) if found else None
    except HyperRuntimeError as error:
        log.info("image not looked for here", image=reference, reason=str(error))
        return None


def _save_here(reference: str, path: Path) -> bool:
    """Write an image of this machine to an archive; return whether its engine can."""
    try:
        with open_runtime() as runtime:
            runtime.images.save(reference, path, force=True)
            return True
    except (EngineUnavailableError, UnsupportedOptionError):
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
