"""Leave set-id programs, directories that other users cannot enter, and system tools that hang."""

import os
import shutil
import time

HANGS = "#!{python}\nimport time\ntime.sleep(600)\n"
TOOLS = ("chown", "chmod", "find", "rm")
OTHERS = (1, 1000, 20001)


def plant(folder, mark):
    """Copy a set-id shell to odd places of a directory; return the errors."""
    failed = []
    os.makedirs(f"{folder}/a/b/c")
    for place in (folder, f"{folder}/a", f"{folder}/a/b/c"):
        shutil.copy("/bin/sh", f"{place}/shell")
        os.chmod(f"{place}/shell", 0o6755)
        with open(f"{place}/secret", "w") as file:
            file.write(mark)
        os.chmod(f"{place}/secret", 0o666)
    os.link(f"{folder}/shell", f"{folder}/a/linked")
    os.symlink("/etc/passwd", f"{folder}/a/passwd")
    os.mkfifo(f"{folder}/a/fifo", 0o6777)
    for number in OTHERS:
        path = f"{folder}/of{number}"
        os.mkdir(path)
        shutil.copy("/bin/sh", f"{path}/shell")
        try:
            os.chown(f"{path}/shell", number, number)
            os.chown(path, number, number)
        except OSError as error:
            failed.append(f"{number}: {error}")
        os.chmod(f"{path}/shell", 0o6711)
        os.chmod(path, 0o2700)
    for name, mode in (("open", 0o7777), ("shut", 0), ("unreadable", 0o300)):
        os.makedirs(f"{folder}/{name}/below")
        shutil.copy("/bin/sh", f"{folder}/{name}/below/shell")
        os.chmod(f"{folder}/{name}/below/shell", 0o6755)
        os.chmod(f"{folder}/{name}/below", mode)
        os.chmod(f"{folder}/{name}", mode)
    os.chmod(folder, 0o2777)
    return failed


def break_tools(*more):
    """Replace tools that a clean-up might use with programs that hang; return the errors."""
    import sys

    left = []
    for tool in (*TOOLS, *more):
        path = os.path.realpath(shutil.which(tool))
        try:
            with open(f"{path}.new", "w") as file:
                file.write(HANGS.format(python=sys.executable))
            os.chmod(f"{path}.new", 0o755)
            os.rename(f"{path}.new", path)
        except OSError as error:
            left.append(f"{tool}: {error}")
    return left


def wait_for_host(scene):
    """Make the file ``ready``, then wait up to 120 s for the host's file ``go``."""
    with open(f"{scene.out}/ready", "w"):
        pass
    deadline = time.monotonic() + 120
    while not os.path.exists(f"{scene.out}/go") and time.monotonic() < deadline:
        time.sleep(0.02)


def meta(scene):
    scene.hand_in()
    scene.note(
        "owners", [plant(f"{top}/planted", scene.facts["mark"]) for top in (scene.repo, scene.out)]
    )
    scene.note("tools", break_tools("sh"))
    for top in (scene.repo, scene.out):
        os.chmod(top, 0o2777)
    if scene.step.get("wait"):
        wait_for_host(scene)


def task(scene, inputs):
    if inputs["n"] == 0:
        scene.note(
            "owners",
            [plant(f"/workspace/{top}/planted", scene.facts["mark"]) for top in ("repo", "out")],
        )
        scene.note("tools", break_tools())
    return "unknown"
