"""The gateway, used from containers without a network, on the engine under test."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from psutil import Process

import hyperruntime as hr
from hyperruntime.errors import GatewayError
from hyperruntime.gateway import (
    Access,
    ClientLimits,
    Gateway,
    GatewayConfig,
    ModelRule,
    Upstream,
)
from hyperruntime.units import MIB
from tests.doubles.upstream import (
    Received,
    Reply,
    ScriptedUpstream,
    chat,
    chat_stream,
    scripted_upstream,
)

pytestmark = pytest.mark.engine

ASK = """
import json, os, sys, urllib.request
body = json.dumps({"model": "m", "messages": [], "stream": len(sys.argv) > 1}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
sys.stdout.buffer.write(urllib.request.urlopen(request).read())
"""

HOSTILE = r"""
import json, os, socket, sys, threading, time
from urllib.parse import urlsplit
url, own = urlsplit(os.environ["OPENAI_BASE_URL"]), os.environ["OPENAI_API_KEY"]
def dial():
    return socket.create_connection((url.hostname, url.port), timeout=30)
def head(token=own, **more):
    names = {"Host": "g", "Authorization": "Bearer " + token, **{k.replace("_", "-"): v for k, v in more.items()}}
    lines = "".join(f"{name}: {value}\r\n" for name, value in names.items())
    return f"POST /v1/chat/completions HTTP/1.1\r\n{lines}\r\n".encode()
def answer(client):
    data = b""
    try:
        while b"\r\n" not in data and (piece := client.recv(4096)):
            data += piece
    except ConnectionError:
        pass
    client.close()
    return data.split(b" ")[1].decode() if data else "closed"
def ask(body, token=own):
    client = dial()
    client.sendall(head(token, Content_Length=len(body)) + body)
    return answer(client)
def endless():
    client = dial()
    try:
        client.sendall(head(Transfer_Encoding="chunked"))
        for _ in range(3000):
            client.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
    except ConnectionError:
        pass
    return answer(client)
def drip(first, part):
    client = dial()
    try:
        client.sendall(first)
        for _ in range(100):
            client.sendall(part)
            time.sleep(0.2)
    except ConnectionError:
        return True
    return False
def announced():
    client = dial()
    client.sendall(head(Content_Length=10**12))
    return answer(client)
good = json.dumps({"model": "m"}).encode()
found = {"junk": ask(b"{]"), "deep": ask(b"[" * 50_000), "model": ask(b'{"model": "dear"}'),
         "token": ask(good, sys.argv[1]), "announced": announced(), "endless": endless()}
drips, threads = [], []
begun = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\n"
for first, part in ((b"", b"G"), (begun, b"x: y\r\n"), (head(Content_Length=90), b"{")) * 6:
    threads.append(threading.Thread(target=lambda first=first, part=part: drips.append(drip(first, part))))
    threads[-1].start()
[thread.join() for thread in threads]
found["dripping clients dropped"] = all(drips)
found["good"] = ask(good)
print(json.dumps(found))
"""

KILL_FORWARDER = """
for process in /proc/[0-9]*; do
    if tr '\\0' ' ' <$process/cmdline | grep -q '^python3 -I -S -'; then kill "${process#/proc/}"; fi
done
"""


def answer(received: Received) -> Reply:
    """Return a reply in one piece, or as a stream if the request asks for one."""
    return chat_stream("hel", "lo") if received.body.get("stream") else chat("hello")


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    """A model server."""
    with scripted_upstream(answer) as running:
        yield running


@pytest.fixture
def gateway(upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    """A gateway in front of the model server, with a key."""
    monkeypatch.setenv("TEST_KEY", "sk-the-real-key")
    config = GatewayConfig(
        upstreams=(Upstream(name="u", url=upstream.url, key_env="TEST_KEY"),),
        models=(ModelRule(name="m", upstream="u"),),
    )
    with Gateway(config) as opened:
        yield opened


def test_a_container_without_a_network_reaches_the_model(
    container: hr.Container, gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    assert container.spec.network == "none"
    with Access(gateway, container, "gen-1") as access:
        whole = container.exec(["python3", "-c", ASK], env=access.env, timeout_s=60).check()
        stream = container.exec(
            ["python3", "-c", ASK, "stream"], env=access.env, timeout_s=60
        ).check()
        everything = container.exec(["env"], env=access.env).stdout
        access.check()
    assert json.loads(whole.stdout)["choices"][0]["message"]["content"] == "hello"
    assert stream.stdout.endswith(b"data: [DONE]\n\n")
    assert access.seat.spent.requests == len(upstream.received) == 2
    assert b"sk-the-real-key" not in everything
    assert upstream.received[0].headers["authorization"] == "Bearer sk-the-real-key"


def test_large_simultaneous_requests_arrive_completely(
    container: hr.Container, gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    script = """
import json, os, threading, urllib.request
def ask(i):
    body = json.dumps({"model": "m", "messages": [{"content": str(i) * 300000}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    print(urllib.request.urlopen(request).status)
threads = [threading.Thread(target=ask, args=(i,)) for i in range(10)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    with Access(gateway, container, "gen-1") as access:
        done = container.exec(["python3", "-c", script], env=access.env, timeout_s=60).check()
    assert done.stdout.split() == [b"200"] * 10
    sent = sorted(received.body["messages"][0]["content"] for received in upstream.received)
    assert sent == [str(i) * 300_000 for i in range(10)]


def test_the_token_of_another_container_is_refused(
    runtime: hr.Runtime, container: hr.Container, gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    with runtime.container(container.spec) as other, Access(gateway, container, "a") as mine:
        with Access(gateway, other, "b") as theirs:
            stolen = {**mine.env, "OPENAI_API_KEY": theirs.seat.token}
            result = container.exec(["python3", "-c", ASK], env=stolen, timeout_s=60)
            assert b"401" in result.stderr
        assert container.exec(["python3", "-c", ASK], env=mine.env, timeout_s=60).exit_code == 0
    assert [upstream.received[0].body["model"], len(upstream.received)] == ["m", 1]


@pytest.mark.slow
def test_a_hostile_client_is_refused_bounded_and_logged_while_others_are_served(
    runtime: hr.Runtime, container: hr.Container, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    config = GatewayConfig(
        upstreams=(Upstream(name="u", url=upstream.url),),
        models=(ModelRule(name="m", upstream="u"),),
        limits=ClientLimits(body_bytes=100_000, client_s=8.0, connections=16),
        log=str(log),
    )
    with (
        Gateway(config) as gateway,
        runtime.container(container.spec) as other,
        Access(gateway, container, "hostile") as bad,
        Access(gateway, other, "calm") as good,
        ThreadPoolExecutor(1) as pool,
    ):
        before = Process().memory_info().rss
        attack = pool.submit(
            container.exec, ["python3", "-c", HOSTILE, good.seat.token], env=bad.env, timeout_s=120
        )
        served = 0
        while not attack.done():
            other.exec(["python3", "-c", ASK], env=good.env, timeout_s=60).check()
            served += 1
        found = json.loads(attack.result().check().stdout)
        grown = Process().memory_info().rss - before
    assert found == {
        "junk": "400",
        "deep": "400",
        "model": "403",
        "token": "401",
        "announced": "413",
        "endless": found["endless"],
        "dripping clients dropped": True,
        "good": "200",
    }
    assert found["endless"] in ("413", "closed")
    assert served >= 2
    assert grown < 64 * MIB
    assert len(upstream.received) == served + 1, "another request reached the upstream"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    refused = {line["error"].partition(":")[0] for line in lines if line["seat"] == "hostile"}
    assert {
        "invalid_json",
        "model_not_allowed",
        "wrong_token",
        "body_too_large",
        "slow_client",
    } <= refused
    assert all(line["status"] == 200 for line in lines if line["seat"] == "calm")


def test_the_end_of_the_forwarder_is_reported(container: hr.Container, gateway: Gateway) -> None:
    with Access(gateway, container, "gen-1") as access:
        container.exec(["sh", "-c", KILL_FORWARDER]).check()
        with pytest.raises(GatewayError, match="forwarder"):
            wait_for_end(access)


def wait_for_end(access: Access) -> None:
    """Check the access for at most a minute; the check raises an error when the access is lost."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        access.check()
        time.sleep(0.05)


def test_an_image_without_python_is_an_error(
    runtime: hr.Runtime, busybox_image: str, base_image: str, gateway: Gateway
) -> None:
    if busybox_image == base_image:
        pytest.skip("this engine has one image, and it has python3")
    with runtime.container(hr.ContainerSpec(image=busybox_image)) as bare:
        with pytest.raises(GatewayError, match="no python3 in the image"):
            Access(gateway, bare, "gen-1")
        assert bare.exec(["true"]).exit_code == 0
