"""What the task begins with."""

import os
import subprocess

REPOSITORY = "/home/user/notes"


def git(*args):
    command = ["git", "-c", f"safe.directory={REPOSITORY}", "-C", REPOSITORY, *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_commit_is_on_no_branch():
    assert git("log", "--all", "--format=%s") == "Shopping\nIdeas"
    assert "Soup" in git("log", "--walk-reflogs", "--format=%s")


def test_its_file_is_gone():
    assert not os.path.exists(f"{REPOSITORY}/recipes")
