"""A process that runs commands on run directories, for tests with hostile ones; its memory is
limited.

Usage: ``python -m tests.doubles.run_reader CASES``. ``CASES`` is a JSON file: a list of
``[directory, command]``. It prints one JSON line per case: the case, what the command printed, and
its exit code. The last line has the peak of its memory.
"""

from __future__ import annotations

import base64
import io
import json
import re
import resource
import sys
import zlib
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from hyperruntime.cli import main
from hyperruntime.cli.params import is_rollout
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.loop.run.import_hyperagents import import_run
from hyperruntime.loop.run.one_generation import evaluate_generation
from hyperruntime.loop.run.plan import plan_resume
from hyperruntime.loop.run.run import resume_run
from hyperruntime.report.live.followed import FollowedRun, LoopSource
from hyperruntime.report.page.trajectories import RolloutRun
from hyperruntime.secrets.known import Secrets
from tests.doubles.fake_runtime import FakeRuntime

_MOST_MEMORY_BYTES = 3 << 30  # so that a fault ends this process and not the machine
_BLOCK = re.compile(r'<script[^>]*class="block"[^>]*>([^<]*)</script>')
_INDEX = re.compile(r'<script[^>]*id="data"[^>]*>([^<]*)</script>')


def details_in(page: Path) -> str:
    """Return the details in a page, which are compressed there."""
    text = page.read_text()
    blocks, index = _BLOCK.findall(text), json.loads(_INDEX.findall(text)[0])[0]["details"]
    found = [
        blocks[block].strip("\n")[offset : offset + length]
        for block, offset, length in filter(None, index)
    ]
    return "".join(zlib.decompress(base64.b64decode(one)).decode() for one in found)


def watch(run_dir: Path) -> None:
    """Print all that a live page of a run shows at first."""
    source = (RolloutRun if is_rollout(run_dir) else LoopSource)(run_dir, Secrets())
    followed = FollowedRun(source)
    followed.read_new()
    facts = followed.facts()
    print(json.dumps([facts, [followed.details(name) for name in facts["ids"]]]))


def do(run_dir: Path, command: str) -> int:
    """Run a command on a directory; return its exit code."""
    if command == "watch":
        watch(run_dir)
    elif command == "resume":
        resume_run(FakeRuntime(), plan_resume(run_dir, max_generation=4))
    elif command == "import":
        import_run(run_dir)
    elif command == "evaluate":
        evaluate_generation(FakeRuntime(), run_dir, 1, split="train", samples=1)
    else:
        name, *args = command.split()
        target = [str(run_dir.with_name("exported"))] if name == "export" else []
        code = main([*name.split("-"), str(run_dir), *args, *target])
        if name == "report" and code == 0:
            print(details_in(run_dir / "report.html"))
        return code
    return 0


def one(directory: str, command: str) -> dict[str, Any]:
    """Return the outcome of a case."""
    out = io.TextIOWrapper(io.BytesIO(), write_through=True)
    with redirect_stdout(out), redirect_stderr(out):
        try:
            code = do(Path(directory), command)
        except HyperRuntimeError as error:
            print(f"error: {error}")
            code = 1
    said = out.buffer.getvalue().decode()
    return {"directory": directory, "command": command, "said": said, "code": code}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
    for case in json.loads(Path(sys.argv[1]).read_text()):
        print(json.dumps(one(*case)), flush=True)
    print(
        json.dumps({"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}),
        flush=True,
    )
