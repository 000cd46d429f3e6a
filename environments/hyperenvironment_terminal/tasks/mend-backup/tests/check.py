"""Try the script on trees of our own, and write how much of it is right."""

import json
import os
import subprocess
import tempfile

FILES = {"a.txt": "1", "deep/er/a.txt": "2", "two words/b c.txt": "3", "-n.txt": "4", "star*.txt": "5", "new\nline.txt": "6"}
OTHERS = {"a.md": "x", "txt": "y", "deep/a.txt.old": "z"}


def run(*args):
    return subprocess.run(["/app/backup.sh", *args], capture_output=True, text=True, timeout=20)


def tree(top):
    found = {}
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            with open(path) as file:
                found[os.path.relpath(path, top)] = file.read()
    return found


def copies():
    with tempfile.TemporaryDirectory() as top:
        source, target = os.path.join(top, "the source"), os.path.join(top, "a", "target dir")
        for name, text in {**FILES, **OTHERS}.items():
            os.makedirs(os.path.dirname(os.path.join(source, name)), exist_ok=True)
            with open(os.path.join(source, name), "w") as file:
                file.write(text)
        result = run(source, target)
        right = tree(target) == FILES
        return {"copies": right, "counts": right and result.stdout == f"{len(FILES)}\n", "status": right and result.returncode == 0}


def refuses():
    with tempfile.TemporaryDirectory() as top:
        target = os.path.join(top, "target")
        result = run(os.path.join(top, "none"), target)
        return {"refuses": result.returncode == 2 and not result.stdout and bool(result.stderr) and not os.path.exists(target)}


def attempt(check, names):
    try:
        return check()
    except Exception as error:
        print(f"{check.__name__}: {error}")
        return dict.fromkeys(names, False)


parts = {**attempt(copies, ("copies", "counts", "status")), **attempt(refuses, ("refuses",))}
# Nothing is earned by a script that copies wrongly, so that one which does nothing earns nothing.
reward = sum(parts.values()) / len(parts) if parts["copies"] else 0.0
with open("/logs/verifier/reward.json", "w") as file:
    json.dump({"reward": reward, **{name: float(value) for name, value in parts.items()}}, file)
print(parts)
