"""The live page in Chromium: it grows with the run, comes back after a restart, and runs no text of
an agent.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from hyperruntime.loop.run_files.layout import LOG, Layout
from hyperruntime.runs.lock import RunLock
from tests.browser.conftest import OPEN_ALL, Browser
from tests.browser.test_page import hostile_texts
from tests.doubles.shown_runs import grow, loop_run, plain, rollout_run
from tests.doubles.watching import watching

PANEL = "document.querySelector('.panel')"
STATE = "document.getElementById('connection').dataset.state"
NOW = "document.querySelector('.now').innerText"
TILES = "document.querySelector('.tiles').innerText"
NO_SERVER = (
    "ERR_CONNECTION_REFUSED",
    "ERR_CONNECTION_RESET",
    "ERR_INCOMPLETE_CHUNKED_ENCODING",
    "ERR_EMPTY_RESPONSE",
)


@contextmanager
def opened(browser: Browser, run_dir: Path, count: int) -> Iterator[None]:
    """Show the live page of a run with so many entries; leave it before its server ends."""
    with watching(run_dir, state=run_dir.parent / "state") as address:
        browser.driver.get(address)
        wait(browser, total(count))
        wait(browser, f"{STATE} === 'live'")
        yield
        browser.driver.get("about:blank")


def wait(browser: Browser, script: str) -> None:
    WebDriverWait(browser.driver, 120).until(lambda _: browser.run(f"return {script}"))


def total(count: int) -> str:
    return f"document.querySelector('.bar .hint')?.innerText === '{count} of {count}'"


def test_a_page_grows_with_its_run_and_keeps_what_the_reader_does(
    browser: Browser, tmp_path: Path
) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 60, made=0)
    with opened(browser, run_dir, 0):
        grow(run_dir, 60, range(20))
        wait(browser, total(20))
        wait(browser, f"/^20 of 60\\ngenerations$/im.test({TILES})")
        assert browser.run("return document.querySelectorAll('canvas').length") == 2
        browser.run("state.table.choose(5)")
        wait(
            browser,
            "document.querySelector('.panel') && "
            "document.querySelector('.panel').innerText.includes('+new 5')",
        )
        browser.run(
            "state.table.find.value = 'exit code'; state.table.find.dispatchEvent(new "
            "Event('input'))"
        )
        grow(run_dir, 60, [21, 20, *range(22, 60)])  # two at once: the later one ends first
        wait(browser, "runs[0].ids.length === 60")
        wait(browser, "document.querySelector('.bar .hint').innerText === '9 of 60'")
        assert browser.run("return runs[0].ids.slice(19, 23)") == ["19", "20", "21", "22"]
        assert browser.run("return runs[0].parent.every((n, k) => n < k)") is True
        assert "+new 5" in browser.run("return document.querySelector('.panel').innerText")
        assert browser.run("return state.table.find.value") == "exit code"
        wait(browser, f"{TILES}.includes('finished')")


def test_a_page_names_the_generation_that_is_made_its_step_and_its_time(
    browser: Browser, tmp_path: Path
) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 8, made=3)
    layout = Layout(run_dir)
    layout.partial(3).mkdir(parents=True)
    layout.phases(3).touch()
    since = (datetime.now(UTC) - timedelta(minutes=2)).isoformat(timespec="milliseconds")
    (layout.partial(3) / LOG).write_text(f"== evaluate\n   since {since}\n")
    with RunLock(run_dir), opened(browser, run_dir, 3):
        wait(browser, f"/^now: generation 3 .evaluate, 2m [0-9]+s.$/.test({NOW})")
        before = browser.run(f"return {NOW}")
        wait(browser, f"{NOW} !== {json.dumps(before)}")
        layout.phases(3).unlink()
        wait(browser, f"{NOW} === ''")


def test_a_page_comes_back_when_a_server_that_was_killed_starts_again(
    browser: Browser, tmp_path: Path
) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 30, made=10)
    with watching(run_dir, state=tmp_path / "state", end=signal.SIGKILL) as address:
        browser.driver.get(address)
        wait(browser, total(10))
        wait(browser, f"{STATE} === 'live'")
        browser.run("window.isOld = true")
    wait(browser, f"{STATE} === 'waiting'")
    grow(run_dir, 30, range(10, 30))
    with watching(run_dir, state=tmp_path / "state") as again:
        assert again == address
        wait(browser, total(30))
        wait(browser, f"{STATE} === 'live'")
        assert browser.run("return window.isOld"), (
            "it took the missing rows and did not load the page again"
        )
        assert [
            error for error in browser.errors() if not any(known in error for known in NO_SERVER)
        ] == []
        Layout(run_dir).journal.unlink()
        grow(run_dir, 30, range(3), with_files=False)
        wait(browser, f"window.isOld === undefined && {total(3)}")
        browser.driver.get("about:blank")


def test_rollouts_are_followed_and_their_tokens_shown(browser: Browser, tmp_path: Path) -> None:
    run_dir = rollout_run(tmp_path / "rollout_1", 5, 4)
    lines = (run_dir / "trajectories.jsonl").read_bytes().splitlines(keepends=True)
    (run_dir / "trajectories.jsonl").write_bytes(b"".join(lines[:6]))
    with opened(browser, run_dir, 6):
        with (run_dir / "trajectories.jsonl").open("ab") as file:
            file.write(b"".join(lines[6:]) + lines[0])
        wait(browser, total(20))
        browser.run("state.table.choose(17)")
        wait(browser, "document.querySelectorAll('.tokens span').length === 4")
        assert "item 4" in browser.run("return document.querySelector('.panel').innerText")


def test_no_text_of_an_agent_runs_in_a_live_page(browser: Browser, tmp_path: Path) -> None:
    texts = hostile_texts()

    def said(number: int) -> dict[str, str]:
        one = texts[number]
        return {
            **plain(number),
            "diff": one,
            "history": f"# {one}\n\n{one}\n",
            "log": one,
            "detail": one,
            "task": one,
        }

    run_dir = loop_run(tmp_path / "generate_1", len(texts), said, made=2)
    with opened(browser, run_dir, 2):
        grow(run_dir, len(texts), range(2, len(texts)), said)
        wait(browser, total(len(texts)))
        titles = [f"Generation {number or 'initial'}:" for number in range(len(texts))]
        assert browser.run_async(OPEN_ALL, titles) == len(texts)
        assert browser.run("return window.pwned") is None


def test_a_page_in_a_unix_socket_opens_for_its_user_alone(tmp_path: Path) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 3)
    place = tmp_path / "sockets" / "run.sock"
    with watching(run_dir, "--socket", str(place), state=tmp_path / "state") as address:
        assert os.stat(place.parent).st_mode & 0o777 == 0o700
        assert place.is_socket()
        path = urlsplit(address).path
        assert get(place, path) == 200
        assert get(place, "/") == get(place, f"{path[:-2]}/") == 404
    assert not place.exists()


def get(place: Path, path: str) -> int:
    """Ask a server in a Unix socket for a path; return the status."""
    connection = HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(60)
    connection.sock.connect(str(place))
    with closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


def test_a_page_whose_server_has_ended_says_where_the_details_are(
    browser: Browser, tmp_path: Path
) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 4)
    with watching(run_dir, state=tmp_path / "state") as address:
        browser.driver.get(address)
        wait(browser, f"{total(4)} && {STATE} === 'live'")
    wait(browser, f"{STATE} === 'ended'")
    assert "hyperrun report RUN" in browser.run(
        "return document.getElementById('connection').innerText"
    )
    browser.run("state.table.choose(1)")
    wait(
        browser,
        f"{PANEL}.innerText.includes('The server has ended. To read details, write a page')",
    )


@pytest.mark.slow
def test_ten_thousand_generations_are_followed(browser: Browser, tmp_path: Path) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 10_000, made=9_990, with_files=False)
    with opened(browser, run_dir, 9_990):
        grow(run_dir, 10_000, range(9_990, 10_000), with_files=False)
        wait(browser, total(10_000))
        browser.run("state.table.choose(9999)")
        wait(
            browser, "document.querySelector('.panel h2')?.innerText.startsWith('Generation 9999:')"
        )
        element = browser.driver.find_element(By.ID, "connection")
        assert "finished" in element.text
