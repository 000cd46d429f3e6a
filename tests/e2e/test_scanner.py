"""A public scanner of OpenAI's API says the same through the gateway as directly at a public mock
server.

Both are npm packages, which the test installs into a temporary directory with exact versions and
without their scripts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hyperruntime.gateway import Gateway, GatewayConfig, ModelRule, Upstream
from hyperruntime.ports import forwarder

pytestmark = pytest.mark.slow  # tests/unit/gateway/test_responses.py is the quick one

SCANNER = "compatcanary@0.2.2"
SERVER = "@copilotkit/aimock@1.43.0"
MODEL = "gpt-4o"
REPLIES = [
    (
        "Call the provided tool",
        {"toolCalls": [{"name": "compatcanary_echo", "arguments": '{"value": "CANARY_OK"}'}]},
    ),
    ("Return the requested compatibility status", {"content": '{"status": "ok"}'}),
    ("CANARY_OK", {"content": "CANARY_OK"}),
]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory in which npm installed the two packages."""
    if shutil.which("npm") is None:
        pytest.skip("NOT RUN: npm is missing; install Debian's package npm")
    folder = tmp_path_factory.mktemp("npm")
    options = [
        "--silent",
        "--no-save",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "--prefix",
        str(folder),
    ]
    done = subprocess.run(
        ["npm", "install", *options, SCANNER, SERVER], capture_output=True, text=True, timeout=300
    )
    if done.returncode != 0:
        pytest.skip(f"NOT RUN: npm cannot install {SCANNER} and {SERVER}: {done.stderr[-300:]}")
    return folder / "node_modules"


@contextmanager
def printing(command: list[str], pattern: str) -> Iterator[str]:
    """Run a program until the block ends; yield what the pattern finds in its output."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as program:
        try:
            assert program.stdout is not None
            found = (re.search(pattern, line) for line in program.stdout)
            yield next(match[1] for match in found if match)
        finally:
            program.kill()


def scan(packages: Path, url: str, key: str) -> dict[str, str]:
    """Return the scanner's result for each of its checks."""
    command = [
        "node",
        str(packages / "compatcanary/src/cli.js"),
        "scan",
        f"--base-url={url}",
        f"--model={MODEL}",
    ]
    options = ["--profile", "modern", "--format", "json", "--fail-on", "never"]
    env = {**os.environ, "OPENAI_API_KEY": key}
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, env=env, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return {check["id"]: check["status"] for check in json.loads(done.stdout)["results"]}


def test_the_scanner_finds_the_same_through_the_gateway_as_at_the_server(
    packages: Path, tmp_path: Path
) -> None:
    fixtures = [{"match": {"userMessage": said}, "response": answer} for said, answer in REPLIES]
    file = tmp_path / "fixtures.json"
    file.write_text(json.dumps({"fixtures": fixtures}))
    server = ["node", str(packages / "@copilotkit/aimock/dist/cli.js"), "-p", "0", "-f", str(file)]
    with printing(server, r"listening on (http://\S+)") as address:
        direct = scan(packages, f"{address}/v1", "none")
        config = GatewayConfig(
            upstreams=(Upstream(name="mock", url=f"{address}/v1"),),
            models=(ModelRule(name=MODEL, upstream="mock"),),
        )
        with Gateway(config) as gateway, gateway.seat("scanner", str(tmp_path)) as seat:
            command = [sys.executable, forwarder.__file__, seat.socket_path]
            with printing(command, r"(\d+)") as port:
                through = scan(packages, f"http://127.0.0.1:{port}/v1", seat.token)
            seat.check()
            assert seat.spent.requests == len(direct) - 1, "all but the list of models"
            assert seat.spent.output_tokens > 0
    assert {"responses.basic", "responses.streaming"} <= direct.keys()
    assert set(direct.values()) == {"pass"}
    assert through == direct
