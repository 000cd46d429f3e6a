"""``hyperrun mcp`` without the protocol: what its options make of the pool, the token and the
socket.
"""

from __future__ import annotations

import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

import hyperruntime as hr
from hyperruntime import registry
from hyperruntime.cli import main
from hyperruntime.testing.driver import IMAGE, FakeDriver

IMAGE_WORDS = (IMAGE, "--pids", "none")


@attrs.define
class Seen:
    """What the server was called with."""

    config: hr.PoolConfig | None = None
    how: dict[str, Any] = attrs.field(factory=dict)
    address: tuple[str, int] = ("", 0)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Return what ``hyperrun mcp`` calls the server with, on the fake driver."""
    seen = Seen()

    async def serve(pool: hr.SlotPool, **how: Any) -> None:
        assert pool.status().state == "open"
        seen.config, seen.how = pool.config, how
        if how:
            seen.address = how["listener"].getsockname()

    loads: dict[str, Callable[[], Any]] = {
        registry.RUNTIMES: lambda: FakeDriver,
        registry.SERVERS: lambda: serve,
    }
    names = {registry.RUNTIMES: "fake", registry.SERVERS: "mcp"}

    def plugins(group: str) -> dict[str, registry.Plugin]:
        return {names[group]: registry.Plugin(name=names[group], group="tests", load=loads[group])}

    monkeypatch.setattr(registry, "plugins", plugins)
    return seen


def run(*args: str) -> int:
    return main(["--runtime", "fake", "mcp", *args])


def test_the_options_are_the_limits_of_the_pool(seen: Seen) -> None:
    options = (
        "--env",
        "A=1",
        "--workdir",
        "/tmp",
        "--timeout=5s",
        "--max-timeout",
        "1m",
        "--output-chars",
        "70",
    )
    assert run(*IMAGE_WORDS, *options) == 0
    assert seen.config is not None
    assert (seen.config.spec.image, seen.config.spec.network) == (IMAGE, "none")
    assert (dict(seen.config.spec.env), seen.config.spec.workdir) == ({"A": "1"}, "/tmp")
    assert (
        seen.config.max_containers,
        seen.config.slots_per_container,
        seen.config.spare_containers,
    ) == (1, 1, 0)
    tools = seen.config.tools
    assert (tools.default_timeout_s, tools.max_timeout_s, tools.output_chars) == (5.0, 60.0, 70)
    assert seen.how == {}


def test_a_profile_is_used_as_it_is(seen: Seen, tmp_path: Path) -> None:
    file = tmp_path / "pools.toml"
    limits = f'image = "{IMAGE}"\nmax_containers = 7\nmin_containers = 0\n'
    file.write_text(
        f"[profiles.a]\n{limits}[profiles.b]\n{limits}[profiles.b.tools]\noutput_chars = 9\n"
    )
    assert run("--pools", str(file), "--profile", "b") == 0
    assert seen.config is not None
    assert (seen.config.name, seen.config.max_containers, seen.config.tools.output_chars) == (
        "b",
        7,
        9,
    )


def test_http_has_a_new_token_and_a_port_of_the_loopback(
    seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = set()
    for _ in range(2):
        assert (
            run(
                *IMAGE_WORDS,
                "--http",
                "--sessions",
                "3",
                "--idle-timeout",
                "1m",
                "--allow-host",
                "box",
            )
            == 0
        )
        url, authorization = capsys.readouterr().out.splitlines()
        host, port = seen.address
        assert (host, url) == ("127.0.0.1", f"http://127.0.0.1:{port}/mcp")
        assert authorization == f"Authorization: Bearer {seen.how['token']}"
        assert (seen.how["hosts"], seen.how["idle_timeout_s"]) == (("127.0.0.1", "box"), 60.0)
        tokens.add(seen.how["token"])
        with pytest.raises(ConnectionRefusedError), socket.create_connection(seen.address):
            pass  # the socket is closed at the end
    assert len(tokens) == 2
    assert min(map(len, tokens)) >= 40
    assert seen.config is not None
    assert (seen.config.max_containers, seen.config.spare_containers) == (3, 1)


def test_a_token_file_is_made_private_and_kept(
    seen: Seen, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    found = set()
    for _ in range(2):
        assert run(*IMAGE_WORDS, "--http", "--token-file", str(file)) == 0
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert seen.how["token"] == file.read_text().strip()
        out = capsys.readouterr().out
        assert seen.how["token"] not in out
        assert f"the token is in {file}" in out
        found.add(seen.how["token"])
    assert len(found) == 1


def test_another_address_than_the_loopback_is_noted(
    seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*IMAGE_WORDS, "--http", "--host", "0.0.0.0") == 0
    assert "without encryption" in capsys.readouterr().err
    assert run(*IMAGE_WORDS, "--http", "--host", "localhost") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("mode", "text", "why"),
    [(0o644, "x" * 40, "nobody else can read"), (0o600, "short", "32 to 1024")],
)
def test_a_token_file_that_cannot_be_used_is_refused(
    seen: Seen, tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int, text: str, why: str
) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(mode)
    assert_refused(file, why, seen, capsys)


def assert_refused(file: Path, why: str, seen: Seen, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that a token file is refused in one sentence, before anything starts."""
    assert run(*IMAGE_WORDS, "--http", "--token-file", str(file)) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert why in said.err
    assert seen.config is None


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--port", "1"), "--port needs --http"),
        (("--token-file", "x"), "--token-file needs --http"),
        (("--sessions", "2"), "--sessions needs --http"),
        (("--profile", "x"), "--profile needs --pools"),
        (("--pools", "x", "--memory", "1g"), "--memory and --pools exclude each other"),
        (("--pools", "x", "dev"), "image and --pools exclude each other"),
        (("--pools", "/nowhere/x"), "a readable file"),
        (("--timeout", "1h"), "default_timeout_s"),
        (("--http", "--host", "192.0.2.1", "--port", "1"), "cannot listen on 192.0.2.1:1"),
        (("--http", "--host", "no such host"), "cannot listen on no such host:0"),
        (("--http", "--host", "." * 300), "cannot listen on"),
    ],
)
def test_wrong_usage_is_one_sentence(
    seen: Seen, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], why: str
) -> None:
    assert run(*args) in (1, 2)
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1), said
    assert why in said.err
    assert seen.config is None


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    for name in [name for name in sys.modules if name.startswith("hyperruntime_mcp")]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["mcp"]) == 2
    assert capsys.readouterr().err == (
        "hyperrun: error: MCP servers need the package mcp (2.3 or newer), which is not installed; "
        "try `pip install 'hyperruntime[mcp]'`\n"
    )


def test_a_port_that_is_taken_is_named(seen: Seen, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run("--http", "--port", str(port)) == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err
