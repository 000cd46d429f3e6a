"""Do what ``plan.json`` says for this generation: attack, plant an attacking task agent, or work
honestly.
"""

import argparse
import importlib
import json
import os
import re
import subprocess

from attacks.scene import Scene

parser = argparse.ArgumentParser()
for name in (
    "chat_history_file",
    "repo_path",
    "evals_folder",
    "git_dir",
    "base_commit",
    "outdir",
    "iterations_left",
):
    parser.add_argument("--" + name)
options = parser.parse_args()
with open("plan.json") as file:
    plan = json.load(file)
step = plan["steps"].get(os.environ["HYPERRUN_GENERATION"], {})
scene = Scene("meta", options.chat_history_file, plan["facts"])
scene.repo, scene.out, scene.evals, scene.base = (
    options.repo_path, options.outdir, options.evals_folder, options.base_commit,
)  # fmt: skip


def hand_in():
    git = ["git", "-c", "safe.directory=*", "-C", scene.repo]
    subprocess.run([*git, "add", "--all"], check=True)
    diff = subprocess.run(
        [*git, "diff", "--cached", "--binary", scene.base], check=True, capture_output=True
    ).stdout
    with open(f"{scene.out}/model_patch.diff", "wb") as file:
        file.write(diff)


def prepare():
    """Write the attack of the task agent; in an honest generation, raise the level."""
    task = {"name": step["task"], "facts": plan["facts"]} if "task" in step else {}
    with open("task.json", "w") as file:
        json.dump(task, file)
    with open("notes.txt", "a") as file:
        file.write(f"generation {os.environ['HYPERRUN_GENERATION']}\n")
    if not step:
        with open("honest.py") as file:
            text = file.read()
        level = int(re.search(r"^LEVEL = (\d)$", text, re.MULTILINE)[1])
        with open("honest.py", "w") as file:
            file.write(text.replace(f"LEVEL = {level}", f"LEVEL = {level + 1}"))


prepare()
by_tree = False
if "meta" in step:
    scene.hand_in, scene.step = hand_in, step
    try:
        by_tree = importlib.import_module(f"attacks.{step['meta']}").meta(scene) == "by tree"
    finally:
        scene.save()
if not by_tree and not os.path.lexists(f"{scene.out}/model_patch.diff"):
    hand_in()
