"""Plant programs that git runs by itself, in the clone that the host reads later."""

import os
import stat
import subprocess

HOOKS = (
    "applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "prepare-commit-msg", "commit-msg",
    "post-commit", "post-checkout", "post-merge", "pre-push", "reference-transaction", "post-rewrite",
    "post-index-change", "fsmonitor-watchman", "pre-auto-gc", "pre-receive", "update", "post-update",
)  # fmt: skip


def program(path, canary, mark):
    with open(path, "w") as file:
        file.write(f"#!/bin/sh\ntouch {canary} {mark} 2>/dev/null\ncat\n")
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return path


def configuration(command, repo):
    return f"""[core]
\trepositoryformatversion = 0
\tfsmonitor = {command}
\thooksPath = {repo}/.git/hooks
\tsshCommand = {command}
\tpager = {command}
\teditor = {command}
\tgitProxy = {command}
\taskPass = {command}
\tworktree = {repo}
\tattributesFile = {repo}/.git/info/attributes
[include]
\tpath = {repo}/included
[filter "evil"]
\tclean = {command}
\tsmudge = {command}
\trequired = true
[diff]
\texternal = {command}
[diff "evil"]
\ttextconv = {command}
\tcommand = {command}
[merge "evil"]
\tdriver = {command}
[gpg]
\tprogram = {command}
[commit]
\tgpgSign = true
[credential]
\thelper = !{command}
[uploadpack]
\tpackObjectsHook = {command}
[alias]
\tdiff-tree = !{command}
[safe]
\tdirectory = *
[extensions]
\tworktreeConfig = true
"""


def plant(scene, command):
    inner = f"{scene.repo}/.git"
    os.makedirs(f"{inner}/hooks", exist_ok=True)
    os.makedirs(f"{inner}/info", exist_ok=True)
    os.makedirs(f"{inner}/objects/info", exist_ok=True)
    for name in HOOKS:
        program(f"{inner}/hooks/{name}", scene.facts["canary"], "/workspace/out/ran")
    with open(f"{scene.repo}/included", "w") as file:
        file.write(f"[core]\n\tfsmonitor = {command}\n")
    for path in (f"{scene.repo}/.gitattributes", f"{inner}/info/attributes"):
        with open(path, "w") as file:
            file.write("* filter=evil diff=evil merge=evil\n")
    with open(f"{inner}/config", "w") as file:
        file.write(configuration(command, scene.repo))
    with open(f"{inner}/objects/info/alternates", "w") as file:
        file.write(os.path.dirname(scene.facts["canary"]) + "\n")
    with open(f"{inner}/config.worktree", "w") as file:
        file.write(configuration(command, scene.repo))
    with open(f"{scene.repo}/.gitmodules", "w") as file:
        file.write(
            '[submodule "x"]\n\tpath = x\n\turl = ext::sh -c "touch '
            f'{scene.facts["canary"]}"\n\tupdate = !touch x\n'
        )


def nested(scene, command):
    """Make a repository in the repository, and another one whose ``.git`` is a file with a path."""
    os.makedirs(f"{scene.repo}/sub/.git/hooks")
    with open(f"{scene.repo}/sub/.git/config", "w") as file:
        file.write(configuration(command, f"{scene.repo}/sub"))
    os.makedirs(f"{scene.repo}/other")
    with open(f"{scene.repo}/other/.git", "w") as file:
        file.write(f"gitdir: {scene.repo}/sub/.git\n")


def is_live():
    """Return whether git runs the planted programs here; otherwise the test proves nothing."""
    subprocess.run(["git", "-c", "safe.directory=*", "status"], capture_output=True)
    return os.path.exists("/workspace/out/ran")


def meta(scene):
    command = program(f"{scene.repo}/evil.sh", scene.facts["canary"], "/workspace/out/ran")
    if scene.step.get("look"):
        scene.note(
            "hooks",
            sorted(os.listdir(f"{scene.repo}/.git/hooks"))
            if os.path.isdir(f"{scene.repo}/.git/hooks")
            else [],
        )
        with open(f"{scene.repo}/.git/config") as file:
            scene.note("configuration", file.read())
        scene.note("alternates", os.path.exists(f"{scene.repo}/.git/objects/info/alternates"))
        os.remove(command)
        return None
    plant(scene, command)
    nested(scene, command)
    scene.note("live", is_live())
    if scene.step.get("as file"):
        os.rename(f"{scene.repo}/.git", f"{scene.repo}/dot")
        with open(f"{scene.repo}/.git", "w") as file:
            file.write(f"gitdir: {scene.repo}/dot\n")
    return "by tree"


def task(scene, inputs):
    return "unknown"
