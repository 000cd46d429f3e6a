"""The gateway from inside containers without a network, on the engine under test."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

import hyperruntime as hr
from hyperruntime.errors import GatewayError
from hyperruntime.gateway import Access, Gateway, GatewayConfig, ModelRule, Upstream
from hyperruntime.testing.upstream import Received, Reply, ScriptedUpstream, chat, chat_stream, scripted_upstream

pytestmark = pytest.mark.engine

ASK = """
import json, os, sys, urllib.request
body = json.dumps({"model": "m", "messages": [], "stream": len(sys.argv) > 1}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
sys.stdout.buffer.write(urllib.request.urlopen(request).read())
"""

KILL_FORWARDER = """
for process in /proc/[0-9]*; do
    if tr '\\0' ' ' <$process/cmdline | grep -q '^python3 -I -S -'; then kill "${process#/proc/}"; fi
done
"""


def answer(received: Received) -> Reply:
    """Answer as asked, in one piece or as a stream."""
    return chat_stream("hel", "lo") if received.body.get("stream") else chat("hello")


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    """A model server."""
    with scripted_upstream(answer) as running:
        yield running


@pytest.fixture
def gateway(upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    """A gateway before it, with a key."""
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
        whole = container.exec(["python3", "-c", ASK], env=access.env, timeout_s=30).check()
        stream = container.exec(["python3", "-c", ASK, "stream"], env=access.env, timeout_s=30).check()
        everything = container.exec(["env"], env=access.env).stdout
        access.check()
    assert json.loads(whole.stdout)["choices"][0]["message"]["content"] == "hello"
    assert stream.stdout.endswith(b"data: [DONE]\n\n")
    assert access.seat.spent.requests == len(upstream.received) == 2
    assert b"sk-the-real-key" not in everything
    assert upstream.received[0].headers["authorization"] == "Bearer sk-the-real-key"


def test_a_large_request_and_many_at_once_arrive_whole(
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


def test_another_containers_token_opens_nothing(
    runtime: hr.Runtime, container: hr.Container, gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    with runtime.container(container.spec) as other, Access(gateway, container, "a") as mine:
        with Access(gateway, other, "b") as theirs:
            stolen = {**mine.env, "OPENAI_API_KEY": theirs.seat.token}
            result = container.exec(["python3", "-c", ASK], env=stolen, timeout_s=30)
            assert b"401" in result.stderr
        assert container.exec(["python3", "-c", ASK], env=mine.env, timeout_s=30).exit_code == 0
    assert [upstream.received[0].body["model"], len(upstream.received)] == ["m", 1]


def test_a_forwarder_that_a_command_ended_is_told(container: hr.Container, gateway: Gateway) -> None:
    with Access(gateway, container, "gen-1") as access:
        container.exec(["sh", "-c", KILL_FORWARDER]).check()
        with pytest.raises(GatewayError, match="forwarder"):
            wait_for_end(access)


def wait_for_end(access: Access) -> None:
    """Look until the access is known to be lost, at most five seconds."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        access.check()
        time.sleep(0.05)


def test_an_image_without_python_is_told(
    runtime: hr.Runtime, busybox_image: str, base_image: str, gateway: Gateway
) -> None:
    if busybox_image == base_image:
        pytest.skip("this engine has one image, and it has python3")
    with runtime.container(hr.ContainerSpec(image=busybox_image)) as bare:
        with pytest.raises(GatewayError, match="no python3 in the image"):
            Access(gateway, bare, "gen-1")
        assert bare.exec(["true"]).exit_code == 0
