"""What the task ends with. Dates and authors are fixed when the image is made, and so are the
hashes.
"""

import os
import subprocess

REPOSITORY = "/home/user/notes"
SETTINGS = ("core.fsmonitor=false", "core.hooksPath=/dev/null", f"safe.directory={REPOSITORY}")


def git(*args):
    settings = [word for setting in SETTINGS for word in ("-c", setting)]
    command = ["git", *settings, "-C", REPOSITORY, *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commits():
    """The commits of main by what they say: author, date and message."""
    lines = git("log", "--format=%H|%an|%aI|%s", "main").splitlines()
    return {tuple(line.split("|")[1:]): line.split("|")[0] for line in lines}


def test_main_has_the_lost_commit_and_what_came_after():
    found = commits()
    date = "2024-01-01T00:00:00+00:00"
    for message in ("Ideas", "Soup", "Shopping"):
        assert any(key[0] == "Ada" and key[2] == message and key[1][:19] == date[:19] for key in found), (message, found)


def test_it_is_the_very_commit():
    soup = next(commit for key, commit in commits().items() if key[2] == "Soup")
    assert git("show", "--format=%cn|%cI|%s", "--no-patch", soup).startswith("Ada|2024-01-01T00:00:00")
    parent = git("show", "--format=%s", "--no-patch", f"{soup}^")
    assert parent == "Ideas"
    assert git("show", f"{soup}:recipes/soup.txt") == "leek\npotato"


def test_its_hash_was_written_down():
    soup = next(commit for key, commit in commits().items() if key[2] == "Soup")
    with open("/home/user/found.txt") as file:
        assert file.read().strip() == soup


def test_the_working_tree_is_clean_and_on_main():
    assert git("symbolic-ref", "--short", "HEAD") == "main"
    assert git("status", "--porcelain") == ""
    assert os.path.isfile(f"{REPOSITORY}/recipes/soup.txt")
    assert os.path.isfile(f"{REPOSITORY}/shopping.txt")
