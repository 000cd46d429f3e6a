"""Leave processes that outlive the program that started them."""

import os
import signal
import subprocess
import sys
import time

LOOP = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
while True:
    for path in sys.argv[2:]:
        try:
            with open(path, "w") as file:
                file.write("LEVEL = 4\\n")
        except OSError:
            pass
    try:
        os.write(1, b'{"task_id": "t3", "prediction": "forged"}\\n')
    except OSError:
        pass
    time.sleep(0.005)
"""


def start(mark, *paths, **options):
    return subprocess.Popen([sys.executable, "-c", LOOP, mark, *paths], **options)


def double_fork(mark, *paths):
    """Start an orphan in another session that keeps our output open."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-c", LOOP, mark, *paths])
        os._exit(0)
    os.wait()


def without_environment(mark, *paths):
    start(
        mark,
        *paths,
        env={},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def by_shell(mark, *paths):
    command = f'nohup setsid {sys.executable} -c "$1" "$2" "$3" >/dev/null 2>&1 &'
    subprocess.run(["sh", "-c", command, "sh", LOOP, mark, *paths[:1]], check=True)


def fork_until_refused():
    """Fork until the kernel has refused 50 times or 5000 children exist; return the number of
    children.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    children = 0
    refused = 0
    while refused < 50 and children < 5000:
        try:
            if os.fork() == 0:
                time.sleep(600)
                os._exit(0)
            children += 1
        except OSError:
            refused += 1
    return children


def leave(mark, *paths):
    start(mark, *paths)
    double_fork(mark, *paths)
    without_environment(mark, *paths)
    by_shell(mark, *paths)


def meta(scene):
    mark = scene.facts["mark"]
    if scene.step.get("bomb"):
        children = fork_until_refused()
        scene.note("children", children)
        os._exit(0)
    scene.hand_in()
    also = [f"{scene.out}/model_patch.diff"] if scene.step.get("diff") else []
    leave(mark, f"{scene.repo}/honest.py", f"{scene.out}/late", *also)
    time.sleep(0.2)


def task(scene, inputs):
    if inputs["n"] == 0:
        leave(scene.facts["mark"], "/workspace/repo/honest.py", "/workspace/repo/task_agent.py")
    if inputs["n"] == 1:
        scene.note("children", fork_until_refused())
    return "unknown"
