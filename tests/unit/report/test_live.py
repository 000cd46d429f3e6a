"""The server of a live page: who may read it, what it sends, and that it comes back as it was."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hyperruntime.loop.run_files.record import GenerationMark, mark_to_json
from hyperruntime.ports.listeners import ListenError, listen_on_loopback, listen_on_socket
from hyperruntime.report.live.address import ticket_of
from hyperruntime.report.live.followed import FollowedRun, LoopSource
from hyperruntime.report.live.server import LiveServer, serving
from hyperruntime.report.page.trajectories import RolloutRun
from hyperruntime.runs.journal import GrowingFile
from hyperruntime.runs.lock import RunLock
from hyperruntime.secrets.known import Secrets
from tests.doubles.shown_runs import grow, loop_run, plain, rollout_run
from tests.doubles.watching import watching

TOKEN = "t" + "0123456789" * 4
SECRET = "upstream-key-0123456789-abcdefghij"


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_LOOK_S", 0.05), ("_LOOK_EACH_S", 0.001), ("_SHUTDOWN_S", 0.05)):
        monkeypatch.setattr(f"hyperruntime.report.live.server.{name}", value)


class Viewer:
    """A client of one server."""

    def __init__(self, session: aiohttp.ClientSession, base: str) -> None:
        self.session, self.base = session, base

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with self.session.get(f"{self.base}{path}", headers=headers) as answer:
            return answer.status, await answer.text()

    async def news(self, last: str = "") -> tuple[str, dict[str, Any]]:
        """Return the id and the data of the next event, after that of a reader who had the event
        ``last``.
        """
        return await self.until(lambda _: True, last)

    async def rows(self, last: str) -> tuple[str, dict[str, Any]]:
        """Return the next event with rows. Whether it is the first of its connection depends on who
        was faster.
        """
        return await self.until(lambda found: bool(found["rows"]["ids"]), last)

    async def until(
        self, is_it: Callable[[dict[str, Any]], bool], last: str = ""
    ) -> tuple[str, dict[str, Any]]:
        """Return the next event that is as wanted."""
        name, number, found = "", last, dict[str, Any]()
        headers = {"Last-Event-ID": last} if last else {}
        async with self.session.get(f"{self.base}/{TOKEN}/events", headers=headers) as answer:
            assert answer.headers["Content-Type"] == "text/event-stream"
            async for raw in answer.content:
                field, _, value = raw.decode().rstrip("\n").partition(": ")
                name = value if field == "event" else name
                number = value if field == "id" else number
                if field == "data" and is_it(found := {"event": name, **json.loads(value)}):
                    return number, found
        raise AssertionError(f"the events ended with {found}")


def serve(
    run_dir: Path, visit: Callable[[Viewer], Awaitable[None]], screen: Secrets | None = None
) -> None:
    async def run() -> None:
        def opened() -> FollowedRun:
            hides = screen or Secrets({})
            if "rollout" in run_dir.name:
                return FollowedRun(RolloutRun(run_dir, hides, reads=False))
            return FollowedRun(LoopSource(run_dir, hides))

        server = LiveServer(opened, TOKEN)
        await server.start()
        listener = listen_on_loopback(0, 0)
        async with serving(server, listener), aiohttp.ClientSession() as session:
            await visit(Viewer(session, f"http://127.0.0.1:{listener.getsockname()[1]}"))

    asyncio.run(run())


def test_every_path_needs_the_token_and_this_machines_name(tmp_path: Path) -> None:
    async def visit(viewer: Viewer) -> None:
        for path in ("", "events", "details?id=1"):
            assert (await viewer.get(f"/{TOKEN}/{path}", Host="attacker.example:80"))[0] == 403
            for wrong in (
                "/é/",
                "/%FF%FE/",
                "/%ED%A0%80/",
                f"/{'x' * 7000}/",
                "/",
                f"/{path}",
                f"/{TOKEN[:-1]}/{path}",
                f"/{TOKEN}x/{path}",
                f"//{TOKEN}/{path}",
            ):
                status, text = await viewer.get(wrong)
                assert status == 404, wrong
                assert TOKEN not in text
        for host in ("localhost:8123", "127.0.0.1", "[::1]:9"):
            assert (await viewer.get(f"/{TOKEN}/", Host=host))[0] == 200
        assert (await viewer.get(f"/{TOKEN}/other"))[0] == 404
        async with viewer.session.post(f"{viewer.base}/{TOKEN}/") as answer:
            assert answer.status == 405
        async with viewer.session.get(f"{viewer.base}/{TOKEN}/") as answer:
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "Access-Control-Allow-Origin" not in answer.headers
            assert "Set-Cookie" not in answer.headers

    serve(loop_run(tmp_path / "generate_1", 3), visit)


def test_a_viewer_gets_only_what_it_does_not_know_also_from_a_new_server(tmp_path: Path) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 9, made=4)
    last = ""

    async def first(viewer: Viewer) -> None:
        nonlocal last
        last, news = await viewer.news()
        assert news["rows"]["ids"] == ["initial", "1", "2", "3"]
        assert news["state"] == "interrupted"
        reading = asyncio.create_task(viewer.rows(last))
        grow(run_dir, 9, [5, 4])
        last, more = await reading
        assert more["rows"]["ids"] == ["5", "4"]

    async def later(viewer: Viewer) -> None:
        _, news = await viewer.news(last)
        assert news["rows"]["ids"] == ["6", "7", "8"]
        assert news["state"] == "finished"
        for unknown in ("0-99999999", "abc-1", "x", "0--1"):
            assert (await viewer.news(unknown))[1] == {"event": "again"}, unknown

    serve(run_dir, first)
    grow(run_dir, 9, [6, 7, 8])
    serve(run_dir, later)


def test_a_line_that_is_written_in_parts_is_read_when_it_is_whole(tmp_path: Path) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 4, made=3)
    grow(run_dir, 4, [3])
    journal = run_dir / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-20])

    async def visit(viewer: Viewer) -> None:
        last, news = await viewer.news()
        assert news["rows"]["ids"] == ["initial", "1", "2"]
        with journal.open("ab") as file:
            file.write(
                whole[-20:] + b"{torn\n" + json.dumps(mark_to_json(_mark())).encode() + b"\n"
            )
        _, found = await viewer.rows(last)
        assert found["rows"]["ids"] == ["3", "2"]
        assert "line 5 of journal.jsonl is damaged" in found["notes"][0]

    serve(run_dir, visit)


def test_a_page_that_is_loaded_again_is_not_older_than_half_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 4, made=2)

    async def visit(viewer: Viewer) -> None:
        last, _ = await viewer.news()
        first = (await viewer.get(f"/{TOKEN}/"))[1]
        grow(run_dir, 4, [2])
        await viewer.rows(last)
        assert (await viewer.get(f"/{TOKEN}/"))[1] == first, "viewers share a page"
        monkeypatch.setattr("hyperruntime.report.live.server._STALE_S", 0.0)
        assert '"ids":["initial","1","2"]' in (await viewer.get(f"/{TOKEN}/"))[1].replace(" ", "")

    serve(run_dir, visit)


def test_lines_that_no_run_writes_do_not_stop_a_page(tmp_path: Path) -> None:
    run_dir = rollout_run(tmp_path / "rollout_1", 3, 1)
    journal = run_dir / "trajectories.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    first = json.loads(lines[0])
    journal.write_bytes(lines[0])

    async def visit(viewer: Viewer) -> None:
        last, news = await viewer.news()
        assert news["rows"]["ids"] == [first["id"]]
        with journal.open("ab") as file:
            for changed in (
                {"id": [1]},
                {"model": 5},
                {"reward": 10**400},
                {"reward": float("nan")},
                {"parts": 1},
                {"messages": "x"},
                {"started_at": 10**400},
            ):
                file.write(json.dumps({**first, **changed}).encode() + b"\n")
            file.write(lines[1])
        _, found = await viewer.rows(last)
        assert found["rows"]["ids"] == [json.loads(lines[1])["id"]]
        assert "7 lines of trajectories.jsonl are damaged" in found["notes"][0]

    serve(run_dir, visit)


@pytest.mark.parametrize(
    "failure", [OSError(errno.ESTALE, "Stale file handle"), RuntimeError("can't start new thread")]
)
def test_what_a_failed_read_found_comes_with_the_next_one(
    failure: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 5, made=2)
    whole, failures = GrowingFile.new_lines, [failure]

    def failing(file: GrowingFile) -> Iterator[tuple[int, int, bytes]]:
        for number, line in enumerate(whole(file)):
            yield line
            if number == 1 and file.path.name == "journal.jsonl" and failures:
                raise failures.pop()

    async def visit(viewer: Viewer) -> None:
        last, _ = await viewer.news()
        monkeypatch.setattr(GrowingFile, "new_lines", failing)
        grow(run_dir, 5, [2, 3, 4])
        rows: list[str] = []
        address, headers = f"{viewer.base}/{TOKEN}/events", {"Last-Event-ID": last}
        # the page's one connection
        async with viewer.session.get(address, headers=headers) as answer:
            async for raw in answer.content:
                rows += json.loads(raw[6:])["rows"]["ids"] if raw.startswith(b"data: ") else []
                if len(rows) >= 3:
                    break
        assert rows == ["2", "3", "4"]
        assert failures == []

    serve(run_dir, visit)


def test_a_page_of_a_server_that_ends_is_told_so(tmp_path: Path) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 3)
    with ExitStack() as server:
        address = server.enter_context(watching(run_dir, state=tmp_path / "state"))
        with urllib.request.urlopen(f"{address}events", timeout=60) as stream:
            while b"event: news" not in stream.readline():
                pass
            server.close()
            assert stream.read().endswith(b"event: end\ndata: {}\n\n")


def test_a_journal_that_is_replaced_between_look_and_read_is_not_read_as_the_old_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"one\n")
    file = GrowingFile(path)
    assert [line for *_, line in file.new_lines()] == [b"one\n"]
    (tmp_path / "other").write_bytes(b"another run\nwith more lines\n")
    os.replace(tmp_path / "other", path)
    assert list(file.new_lines()) == []
    assert file.was_replaced()


def _mark() -> GenerationMark:
    return GenerationMark(kind="no-parent", genid=2, by=3)


def test_a_hundred_viewers_see_the_run_go_on_and_end(tmp_path: Path) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 6, made=5)

    async def visit(viewer: Viewer) -> None:
        with RunLock(run_dir):
            last, _ = await viewer.until(lambda found: found["state"] == "running")
            reading = [asyncio.create_task(viewer.rows(last)) for _ in range(99)]
            grow(run_dir, 6, [5])
            assert {tuple(found["rows"]["ids"]) for _, found in await asyncio.gather(*reading)} == {
                ("5",)
            }
        await viewer.until(lambda found: found["state"] == "finished", last)

    serve(run_dir, visit)


def test_keys_are_in_no_answer(tmp_path: Path) -> None:
    def said(number: int) -> dict[str, str]:
        return {
            **plain(number),
            **dict.fromkeys(("diff", "history", "log", "detail", "task"), f"# a {SECRET}\nb"),
        }

    screen = Secrets({"OPENAI_API_KEY": SECRET})
    loop, rolled = (
        loop_run(tmp_path / "generate_1", 5, said),
        rollout_run(tmp_path / "rollout_1", 2, 2, said_of),
    )
    answers: list[str] = []

    async def visit(viewer: Viewer) -> None:
        answers.append((await viewer.get(f"/{TOKEN}/"))[1])
        answers.append(json.dumps(await viewer.news()))
        names = ("3", "initial", "item 0/1", "%69tem 0/0")
        answers.extend([(await viewer.get(f"/{TOKEN}/details?id={name}"))[1] for name in names])

    serve(loop, visit, screen)
    serve(rolled, visit, screen)
    assert not [answer for answer in answers if SECRET in answer]
    assert sum("there is no such entry" in answer for answer in answers) == 4
    assert sum("[redacted]" in answer for answer in answers) >= 6


def said_of(number: int) -> str:
    return f"answer {number} {SECRET}"


def test_the_details_of_an_entry_are_asked_by_its_name_alone(tmp_path: Path) -> None:
    async def visit(viewer: Viewer) -> None:
        assert "+new 2" in json.loads((await viewer.get(f"/{TOKEN}/details?id=2"))[1])["diff"]
        for name in ("99", "-1", "../run.json", "", "2%00", "½", "9" * 5000):
            assert (await viewer.get(f"/{TOKEN}/details?id={name}"))[0] in (400, 404), name

    serve(loop_run(tmp_path / "generate_1", 4), visit)


def test_the_address_stays_the_same_and_is_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    ticket = ticket_of(tmp_path / "run")
    with listen_on_loopback(0, ticket.port) as listener:
        port = listener.getsockname()[1]
        ticket = ticket.at(port)
        ticket.keep()
        again = ticket_of(tmp_path / "run")
        assert (again.token, again.port) == (ticket.token, port)
        assert ticket_of(tmp_path / "other").token != ticket.token
        with listen_on_loopback(0, again.port) as other:
            assert other.getsockname()[1] != port
            moved = again.at(other.getsockname()[1])
            assert moved.token != again.token, (
                "another user may have the port, and get the token from open pages"
            )
            moved.keep()
            assert ticket_of(tmp_path / "run").token == moved.token
        with pytest.raises(
            ListenError,
            match=f"port {port} cannot be used: Address already in use; give another --port",
        ):
            listen_on_loopback(port, 0)
    assert stat.S_IMODE(os.stat(ticket.file).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(ticket.file.parent).st_mode) == 0o700
    ticket.file.write_text('{"token": "short", "port": "x"}')
    assert len(ticket_of(tmp_path / "run").token) > 40


def test_a_socket_is_only_made_in_a_directory_of_this_user_alone(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    with pytest.raises(ListenError, match="not a directory that only you may enter"):
        listen_on_socket(shared / "s")
    assert stat.S_IMODE(os.stat(shared).st_mode) == 0o755
    place = tmp_path / "private" / "s"
    with listen_on_socket(place), pytest.raises(ListenError, match="another server uses socket"):
        listen_on_socket(place)
    assert place.is_socket(), "left by a server that was killed"
    listen_on_socket(place).close()
    place.unlink()
    place.write_text("a file")
    with pytest.raises(ListenError, match="cannot be made"):
        listen_on_socket(place)
