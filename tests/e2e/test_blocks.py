"""The code blocks of README and docs run as they are printed, page by page, in order, in an empty
directory.

Only the address of the model server is replaced, because a test cannot count on a port.
``tests/blocks.py`` has the notes by which a page marks a block as a fragment;
``tests/unit/test_blocks.py`` checks what does not run.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.blocks import PAGES, ROOT, SHELLS, Block, blocks
from tests.doubles.byte_tokenizer import START, render_hermes
from tests.doubles.tokenserver import token_server

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("base_image")]

QUICK = ("README.md", "docs/pool.md")
SERVER = "http://127.0.0.1:8000"
_PRINTED = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)
_END, _PRINT_END = "\n\x1e\n", r"printf '\n\036\n'"


def runs(block: Block) -> bool:
    return block.language in ("python", *SHELLS) and not {"fragment", "part"} & block.notes.keys()


def cases() -> Iterator[Any]:
    """Yield the pages of QUICK without their slow blocks, and each page with all its blocks for
    ``make test-all``.
    """
    for page in PAGES:
        found = [block for block in blocks(page) if runs(block)]
        name = str(page.relative_to(ROOT))
        if name in QUICK:
            yield pytest.param(page, False, id=name)
        if any("slow" in block.notes or name not in QUICK for block in found):
            yield pytest.param(
                page, True, id=f"{name}, all", marks=[pytest.mark.slow, pytest.mark.timeout(1200)]
            )


@pytest.fixture
def server() -> Iterator[str]:
    """Yield the address of a model that solves one task of ``swe`` every other time, and else calls
    no tool.
    """
    row = json.loads(
        (ROOT / "environments/hyperenvironment_swe/tasks/title-slugs/task.json").read_text()
    )
    mend = render_hermes(
        "bash", {"command": f"cd title-slugs && git apply - <<'PATCH'\n{row['patch']}PATCH\n"}
    )
    turns = itertools.cycle([mend, "done"])

    def speak(prompt: str) -> str:
        return next(turns) if "title-slugs" in prompt and f"{START}tool\n" not in prompt else "done"

    with token_server(speak) as model:
        yield model.url.removesuffix("/v1")


@pytest.mark.parametrize(("page", "slow"), list(cases()))
def test_the_blocks_of_a_page_run(
    page: Path, slow: bool, server: str, runtime_name: str, tmp_path: Path
) -> None:
    scripts = sysconfig.get_path("scripts")
    named = {"HYPERRUNTIME_RUNTIME": runtime_name, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    env = {**os.environ, **named, "PATH": f"{scripts}:{os.environ['PATH']}"}
    home = tmp_path / "empty"
    home.mkdir()
    for block in blocks(page):
        text = block.text.replace(SERVER, server)
        if "file" in block.notes:
            (home / block.notes["file"]).write_text(text)
        refused = "images" in block.notes and runtime_name == "bubblewrap"
        if runs(block) and not refused and (slow or "slow" not in block.notes):
            (run_python if block.language == "python" else run_shell)(block, text, home, env)


def run_python(block: Block, text: str, home: Path, env: dict[str, str]) -> None:
    """Run a program; the comment behind a ``print`` is the line that it prints."""
    file = home / block.notes.get("file", f"line_{block.line}.py")
    file.write_text(text)
    done = execute(block, [sys.executable, "-W", "error", str(file)], home, env)
    lines = iter(done.splitlines())
    for expected in _PRINTED.findall(text):
        assert expected in lines, f"{block}: {expected!r} was not printed, in this order:\n{done}"


def run_shell(block: Block, text: str, home: Path, env: dict[str, str]) -> None:
    """Run the commands of a block in one bash, and compare their output where the block shows
    it.
    """
    commands = attrs.evolve(block, text=text).commands()
    script = "".join(f"{command}\n{_PRINT_END}\n" for command, _ in commands)
    outputs = execute(block, ["bash", "-e", "-c", script], home, env).split(_END)
    for (command, shown), output in zip(commands, outputs, strict=False):
        pattern = re.sub(r"<[^>]*>|\.\.\.", "\0", shown.strip())
        pattern = ".*?".join(map(re.escape, pattern.split("\0")))
        assert not shown or re.fullmatch(pattern, output.strip(), re.DOTALL), (
            f"{block}: {command}\n{output}"
        )


def execute(block: Block, args: list[str], home: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        args, cwd=home, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, (
        f"{block}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout
