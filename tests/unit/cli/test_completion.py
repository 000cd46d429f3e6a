"""Tab completes commands and options, by click's own completion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete, get_completion_class

from hyperruntime.cli.app import PROGRAM, app

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_HYPERRUN_COMPLETE"


def completion(shell: str) -> ShellComplete:
    found = get_completion_class(shell)
    assert found is not None
    return found(app, {}, PROGRAM, VARIABLE)


@pytest.mark.parametrize("shell", SHELLS)
def test_click_offers_commands_and_options(shell: str) -> None:
    complete = completion(shell)

    def offered(*words: str) -> set[str]:
        return {item.value for item in complete.get_completions(list(words[:-1]), words[-1])}

    assert {"generate", "doctor", "exec"} <= offered("")
    assert offered("gener") == {"generate"}
    assert "--max-generation" in offered("generate", "--max-gen")
    assert offered("image", "bu") == {"build"}
    assert {"--runtime", "--version"} <= offered("--")


def test_bash_completes_with_the_line_of_the_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "bug-reports.md").read_text()
    (line,) = [line for line in page.splitlines() if "=bash_source" in line]
    program = tmp_path / PROGRAM
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom hyperruntime.cli import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    script = f"""{line}
COMP_WORDS=(hyperrun gener) COMP_CWORD=1
_hyperrun_completion hyperrun
printf '%s\\n' "${{COMPREPLY[@]}}"
complete -p hyperrun
"""
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[0] == "generate"
    assert "-F _hyperrun_completion hyperrun" in done.stdout


def test_commands_are_completed_without_importing_them() -> None:
    asked = {**os.environ, VARIABLE: "bash_complete", "COMP_WORDS": "hyperrun ", "COMP_CWORD": "1"}
    script = (
        "import sys; from hyperruntime.cli import main; main()\nprint(*sorted(name for name in "
        "sys.modules if name.startswith('hyperruntime.cli.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], env=asked, capture_output=True, text=True)
    assert {"plain,generate", "plain,doctor"} <= set(done.stdout.split())
    loaded = done.stderr.split()
    assert "hyperruntime.cli.app" in loaded
    commands = ("hyperruntime.cli.loop.", "hyperruntime.cli.machine.")
    assert not [name for name in loaded if name.startswith(commands)]
