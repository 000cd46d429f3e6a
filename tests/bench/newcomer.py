"""The path of a newcomer: follow the first two tutorials in a fresh clone, and print how long each
command takes.

    python -m tests.bench.newcomer

Every command is the printed one, in one bash. Only the address of the repository is replaced, by
this checkout; the clone has what is committed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.blocks import ROOT, SHELLS, blocks

FIRST, SECOND = (
    ROOT / "docs/tutorials/evolve-your-first-agent.md",
    ROOT / "docs/writing-an-agent.md",
)
END_OF_SECOND = "## What the programs get"
LIMIT_S = 15 * 60
_FILE = re.compile(
    r"This\s+is\s+all\s+of\s+`([\w.]+)`:\n\n(?:<!--.*?-->\n)?```\w+\n(.*?)```", re.DOTALL
)
_MARK = "\x1e"


def steps() -> Iterator[tuple[str, str]]:
    """Yield what each step does, and its commands; the files of the second page are a step."""
    for block in blocks(FIRST):
        for command, _ in block.commands() if block.language in SHELLS else ():
            yield (
                f"$ {command.partition(' #')[0].strip()}",
                command.replace("REPOSITORY", str(ROOT)),
            )
    text = SECOND.read_text()
    end = text[: text.index(END_OF_SECOND)].count("\n")
    files = (
        f"cat >my-agent/{name} <<'END_OF_FILE'\n{content}END_OF_FILE\n"
        for name, content in _FILE.findall(text)
    )
    yield "the four files of an own agent", f"mkdir my-agent\n{''.join(files)}"
    for block in blocks(SECOND):
        if block.language in SHELLS and block.line < end:
            for line in block.text.splitlines():
                yield f"$ {line}", f"{line}\n"


def main() -> int:
    """Run the steps, print their times, and return 1 if they took longer than a newcomer has."""
    todo = list(steps())
    script = "".join(f"{commands}printf '{_MARK}\\n'\n" for _, commands in todo)
    started = previous = time.monotonic()
    left = iter(todo)
    with (
        tempfile.TemporaryDirectory(prefix="newcomer-") as folder,
        Path(folder, "errors.txt").open("w+") as errors,
    ):
        args = ["bash", "-e", "-c", script]
        with subprocess.Popen(
            args, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        ) as bash:
            assert bash.stdout is not None
            for line in bash.stdout:
                if _MARK.encode() in line:
                    now = time.monotonic()
                    print(f"{now - previous:7.1f} s  {next(left)[0]}", flush=True)
                    previous = now
        if bash.returncode != 0:
            errors.seek(0)
            print(
                f"exit code {bash.returncode} of: "
                f"{next(left, ('the end', ''))[0]}\n{errors.read()[-3000:]}"
            )
    total = previous - started
    print(f"{total:7.1f} s  in all; a newcomer has {LIMIT_S} s")
    return int(bash.returncode != 0 or total > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
