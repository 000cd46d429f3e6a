"""The agent of docs/writing-an-agent.md runs, improves, and is found as the template of a
package.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hyperruntime.host.process import run_process
from tests.command import cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/writing-an-agent.md").read_text()
TEMPLATE = ROOT / "tests/plugins/agent/hyperagent_grid/agent"
Install = Callable[[str], dict[str, str]]
pytestmark = pytest.mark.engine


def files() -> dict[str, str]:
    """Return the files of the agent on the page."""
    return dict(
        re.findall(
            r"This\s+is\s+all\s+of\s+`([\w.]+)`:\n\n(?:<!--.*?-->\n)?```\w+\n(.*?)```",
            PAGE,
            re.DOTALL,
        )
    )


def scores(run: Path) -> dict[str | int, float | None]:
    """Return the score of each generation of a run."""
    text = (run / "archive.jsonl").read_text()
    last = json.loads(text.splitlines()[-1])["archive"]
    found = {genid: json.loads((run / f"gen_{genid}/metadata.json").read_text()) for genid in last}
    return {genid: one["hyperruntime"]["score"] for genid, one in found.items()}


def test_the_agent_of_the_page_is_made_and_improves(
    runtime_name: str, base_image: str, tmp_path: Path
) -> None:
    (tmp_path / "my-agent").mkdir()
    for name, text in files().items():
        (tmp_path / "my-agent" / name).write_text(text)
    commands, _ = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    env = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    commands = commands.replace("hyperrun generate", f"hyperrun --runtime {runtime_name} generate")
    done = run_process(["sh", "-e", "-c", commands], cwd=tmp_path, env=env, timeout_s=1200)
    assert done.exit_code == 0, done.stderr.decode()
    found = scores(tmp_path / "outputs/generate_first")
    assert max(score or 0 for score in found.values()) > 1.3 * (found["initial"] or 1)
    assert (tmp_path / "better-agent/size.py").read_text() != files()["size.py"]


@pytest.mark.slow
def test_a_package_offers_an_agent_by_name(
    runtime_name: str, base_image: str, install_plugin: Install, tmp_path: Path
) -> None:
    assert {path.name: path.read_text() for path in TEMPLATE.iterdir() if path.is_file()} == files()
    env, run = install_plugin("agent"), tmp_path / "generate_named"
    hyperrun = cli("--runtime", runtime_name)
    named = ["--seed", "3", "--run-id", "named", "--output-dir-parent", str(tmp_path)]

    def call(*args: str, env: dict[str, str] = env) -> tuple[int, str]:
        done = run_process([*hyperrun, *args], env=env, cwd=tmp_path, timeout_s=1200)
        return done.exit_code, done.stderr.decode()

    code, said = call("generate", "--agent", "grd", *named)
    assert (code, "unknown agent template 'grd'; did you mean 'grid'?" in said) == (2, True), said
    code, said = call("generate", "--agent", "grid", "--max-generation", "0", *named)
    assert code == 0, said
    # without the package
    code, said = call("resume", str(run), "--max-generation", "1", env=dict(os.environ))
    assert code == 0, said
    assert set(scores(run)) == {"initial", 1}
