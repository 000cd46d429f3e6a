"""Search all places that a process can reach for labelled rows and keys."""

import csv
import io
import os
import re
import subprocess

KEY = re.compile(rb"key-[0-9a-f]{16}")
OF_THE_IMAGE = ("/usr", "/proc", "/sys", "/lib", "/lib32", "/lib64", "/bin", "/sbin")


def labels_in(data, where):
    text = data.decode(errors="replace")
    if "outcome" not in text[:10_000]:
        return []
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except csv.Error:
        return []
    # An agent may have written its own answer as the outcome; so only another outcome counts as a
    # label.
    return (
        [where]
        if any(row.get("outcome") not in (None, "", row.get("prediction")) for row in rows)
        else []
    )


def look_at(data, where):
    return labels_in(data, where) + [f"a key in {where}" for _ in KEY.findall(data)[:1]]


def in_files():
    hits = []
    for folder, folders, names in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in OF_THE_IMAGE]
        for path in (os.path.join(folder, name) for name in names):
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    hits += look_at(file.read(32 << 20), path)
    return hits


def in_objects():
    """Search all objects of the clone's repository."""
    git = ["git", "-c", "safe.directory=*", "-C", "/hyperagents"]
    if not os.path.isdir("/hyperagents/.git"):
        return []
    listed = subprocess.run([*git, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)"],
                            capture_output=True, check=True).stdout.split()  # fmt: skip
    hits = []
    for name in listed:
        shown = subprocess.run([*git, "cat-file", "-p", name], capture_output=True).stdout
        hits += look_at(shown, f"object {name.decode()}")
    return hits


def in_processes():
    hits = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            try:
                with open(f"/proc/{pid}/{name}", "rb") as file:
                    hits += look_at(file.read(), f"/proc/{pid}/{name}")
            except OSError:
                continue
    return hits


def all_places():
    return {"files": in_files(), "objects": in_objects(), "processes": in_processes()}
