"""Take all disk space."""

import os
import time

BLOCK = bytes(1 << 20)
LAST_S = 60


def fill(path, unlink=False):
    with open(path, "wb", 0) as file:
        if unlink:
            os.unlink(path)
        try:
            for _ in range(2048):
                file.write(BLOCK)
        finally:
            time.sleep(LAST_S)


def many(folder):
    for number in range(200_000):
        os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_WRONLY, 0o600))
    time.sleep(LAST_S)


def shut(folder):
    """Fill a file in a directory that has no permissions."""
    inner = f"{folder}/shut"
    os.mkdir(inner)
    file = open(f"{inner}/file", "wb", 0)
    os.chmod(inner, 0)
    for _ in range(2048):
        file.write(BLOCK)
    time.sleep(LAST_S)


def deep(folder):
    """Make directories so deep that no path reaches the last one, and fill that."""
    os.chdir(folder)
    for _ in range(3000):
        os.mkdir("d")
        os.chdir("d")
    for number in range(2048):
        with open(f"f{number}", "wb", 0) as file:
            file.write(BLOCK)
    time.sleep(LAST_S)


def only_deep(folder):
    os.chdir(folder)
    for _ in range(3000):
        os.mkdir("d")
        os.chdir("d")


WAYS = {
    "out": lambda: fill("/workspace/out/x"),
    "repo": lambda: fill("/workspace/repo/x"),
    "image": lambda: fill("/var/x"),
    "tmp": lambda: fill("/tmp/x"),
    "deleted": lambda: fill("/workspace/out/x", unlink=True),
    "many": lambda: many("/workspace/out"),
    "shut": lambda: shut("/workspace/out"),
    "deep": lambda: deep("/workspace/repo"),
    "only deep": lambda: only_deep("/workspace/out"),
}


def loud():
    """Print 200 MiB to each output stream."""
    for _ in range(200):
        os.write(1, b"x" * (1 << 20))
        os.write(2, b"y" * (1 << 20))


def meta(scene):
    if scene.step["way"] == "output":
        loud()
    elif scene.step["way"] == "special files":
        for number in range(5000):
            os.mkfifo(f"{scene.repo}/{number:0250}")
        return "by tree"
    else:
        WAYS[scene.step["way"]]()
    return None


def task(scene, inputs):
    fill("/workspace/out/x")
    return "unknown"
