"""Images on nodes: each node fetches one once, from a shared file or from a registry."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientSession, web

from hyperruntime.cluster import images as images_module
from hyperruntime.cluster.head import Head, Node
from hyperruntime.cluster.images import ImageService, ImageSource
from hyperruntime.cluster.node_server import NodeServer
from hyperruntime.cluster.node_services import NodeContext, NodeSettings
from hyperruntime.errors import ClusterError, ImagePullError

PUBLIC = "registry.example/tool:1"
LOCAL = "localhost/hyperruntime/base:latest"


class Store:
    """The images of one simulated node, with their content, and what it loaded and made."""

    def __init__(
        self,
        registry: str = "",
        base: bytes | None = None,
        engine: str = "simulated",
        *,
        converts: bool = False,
    ) -> None:
        self.has: dict[str, bytes] = {} if base is None else {LOCAL: base}
        self.loaded: list[bytes] = []
        self.made: list[str] = []
        self.engine, self.converts = engine, converts
        self._registry = registry

    def exists(self, reference: str) -> bool:
        return reference in self.has

    def identifier(self, reference: str) -> str:
        return hashlib.sha256(self.has[reference]).hexdigest() if reference in self.has else ""

    def load(self, archive: str | Path) -> None:
        self.loaded.append(Path(archive).read_bytes())
        self.has[PUBLIC if PUBLIC in self.loaded[-1].decode() else LOCAL] = self.loaded[-1]

    def save(self, reference: str, archive: str, *, force: bool) -> None:
        assert force
        Path(archive).write_bytes(
            self.has[reference] if self.engine == "simulated" else b"by " + self.engine.encode()
        )

    def ensure(self, name: str) -> None:
        self.made.append(name)
        self.has[LOCAL] = f"made {id(self)}".encode()

    def pull(self, reference: str) -> None:
        async def fetch() -> bytes:
            async with (
                ClientSession() as session,
                session.get(f"{self._registry}/{reference}") as answer,
            ):
                if answer.status != 200:
                    raise ImagePullError(reference, f"status {answer.status}", "look there")
                return await answer.read()

        content = asyncio.run(fetch())
        self.has[reference] = content + f" {id(self)}".encode() if self.converts else content


class Simulated(NodeContext):
    """A node without an engine."""

    def __init__(self, store: Store) -> None:
        super().__init__(NodeSettings())
        self.store = store

    async def runtime(self) -> Any:
        return SimpleNamespace(images=self.store, name=self.store.engine)


@asynccontextmanager
async def nodes(stores: list[Store]) -> AsyncIterator[list[Node]]:
    head, served = Head(patience_s=600.0), []  # on a busy machine, 64 nodes join late
    await head.start("127.0.0.1")
    for number, store in enumerate(stores):
        context = Simulated(store)
        server = NodeServer(head.invite(f"n{number}"), ImageService(context).handlers)
        served.append((asyncio.ensure_future(server.serve()), context))
    await asyncio.gather(*(node.joined.wait() for node in head.nodes.values()))
    yield list(head.nodes.values())
    await head.stop()
    for task, context in served:
        task.cancel()
        await context.close()


@asynccontextmanager
async def registry(*, changes: bool = False) -> AsyncIterator[tuple[str, Counter[str]]]:
    """A registry that counts what it is asked; with ``changes``, each answer is another image."""
    asked: Counter[str] = Counter()

    async def serve(request: web.Request) -> web.Response:
        asked[request.path] += 1
        await asyncio.sleep(0.05)
        body = f"{PUBLIC} {asked[request.path] if changes else 1}"
        return web.Response(text=body, status=404 if "missing" in request.path else 200)

    app = web.Application()
    app.router.add_get("/{name:.*}", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    await runner.cleanup()


@pytest.fixture(autouse=True)
def head_without_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images_module, "_identify_here", lambda reference: None)


async def test_each_of_64_nodes_pulls_an_image_once(tmp_path: Path) -> None:
    async with registry() as (address, asked):
        stores = [Store(address) for _ in range(64)]
        source = ImageSource(tmp_path)
        async with nodes(stores) as joined:
            given = await asyncio.gather(
                *(source.give(node, PUBLIC, []) for node in joined for _ in range(5))
            )
            assert Counter(given) == {"pulled": 64, "present": 256}
            assert asked == {f"/{PUBLIC}": 64}
            with pytest.raises(ImagePullError):
                await source.give(joined[0], "registry.example/missing:1", [])


@pytest.mark.parametrize(
    "why", ["each node would convert it", "the registry has another one by now"]
)
async def test_nodes_that_would_get_another_image_of_a_registry_get_the_first_one(
    tmp_path: Path, why: str
) -> None:
    async with registry(changes="another" in why) as (address, asked):
        stores = [Store(address, converts="convert" in why) for _ in range(16)]
        async with nodes(stores) as joined:
            source = ImageSource(tmp_path)
            given = await asyncio.gather(*(source.give(node, PUBLIC, []) for node in joined))
    assert Counter(given) == {"pulled": 1, "loaded": 15}
    assert len({store.identifier(PUBLIC) for store in stores}) == 1
    if "convert" in why:
        assert asked == {f"/{PUBLIC}": 1}


async def test_an_archive_is_made_once_in_the_shared_directory_and_a_node_that_does_not_see_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = LOCAL.encode() * 400_000
    stores = [Store(), Store(base=content), Store(), Store()]
    source = ImageSource(tmp_path)
    async with nodes(stores) as joined:
        given = [await source.give(joined[at], "base", joined) for at in (1, 0, 2)]
        assert given == ["present", "loaded", "loaded"]
        archives = list(tmp_path.iterdir())
        archives[0].unlink()
        monkeypatch.setattr(images_module, "SEEN_S", 0.0)
        with pytest.raises(ClusterError, match="is not seen on this node; start the head in a"):
            await source.give(joined[3], "base", joined)
    assert [store.loaded for store in stores] == [[content], [], [content], []]
    assert len(archives) == 1


async def test_what_one_node_converted_is_given_to_the_other_nodes_of_its_engine(
    tmp_path: Path,
) -> None:
    stores = [Store(base=b"x", engine="podman"), *(Store(engine="apptainer") for _ in range(8))]
    async with nodes(stores) as joined:
        source = ImageSource(tmp_path)
        given = await asyncio.gather(*(source.give(node, "base", [joined[0]]) for node in joined))
    assert Counter(given) == {"present": 1, "loaded": 8}
    loaded = Counter(store.loaded[0] for store in stores[1:])
    assert loaded == {b"by podman": 1, b"by apptainer": 7}
    assert {len(store.loaded) for store in stores[1:]} == {1}


async def test_nodes_with_another_image_of_the_same_name_get_that_of_the_cluster(
    tmp_path: Path,
) -> None:
    stores = [Store(base=content) for content in (b"new", b"old", b"new", b"older")]
    async with nodes(stores) as joined:
        source = ImageSource(tmp_path)
        given = [await source.give(node, "base", []) for node in joined]
        assert given == ["present", "loaded", "present", "loaded"]
    assert [store.has for store in stores] == [{LOCAL: b"new"}] * 4


async def test_an_image_that_nobody_has_is_made_on_one_node_and_given_to_the_others(
    tmp_path: Path,
) -> None:
    stores = [Store() for _ in range(16)]
    async with nodes(stores) as joined:
        source = ImageSource(tmp_path)
        given = await asyncio.gather(*(source.give(node, "base", []) for node in joined))
    assert Counter(given) == {"made": 1, "loaded": 15}
    assert [store.made for store in stores if store.made] == [["base"]]
    assert len({store.identifier(LOCAL) for store in stores}) == 1


async def test_nodes_that_share_a_store_load_an_image_once(tmp_path: Path) -> None:
    shared = Store()
    async with nodes([Store(base=b"x"), *[shared] * 16]) as joined:
        source = ImageSource(tmp_path)
        given = await asyncio.gather(*(source.give(node, "base", [joined[0]]) for node in joined))
    assert Counter(given) == {"present": 16, "loaded": 1}
    assert shared.loaded == [b"x"]


async def test_an_image_that_nobody_has_and_nobody_can_make_is_named_with_the_next_step(
    tmp_path: Path,
) -> None:
    async with nodes([Store()]) as joined:
        with pytest.raises(
            ClusterError, match="neither on the head's machine nor on a node; make it"
        ):
            await ImageSource(tmp_path).give(joined[0], "localhost/mine:1", joined)
