"""Use the script as its description says, with the service started by the tests themselves."""

import os
import signal
import socket
import subprocess

import pytest

HOME = "/home/user/counter"
CTL, SOCKET, PIDFILE = f"{HOME}/ctl", f"{HOME}/counter.sock", f"{HOME}/counter.pid"


def ctl(verb):
    return subprocess.run([CTL, verb], capture_output=True, text=True, timeout=20, cwd="/")


def ask():
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(5)
        connection.connect(SOCKET)
        connection.sendall(b"next\n")
        return int(connection.makefile().readline())


def pid():
    with open(PIDFILE) as file:
        return int(file.read())


def is_service(number):
    try:
        with open(f"/proc/{number}/cmdline", "rb") as file:
            return b"counter.py" in file.read()
    except OSError:
        return False


@pytest.fixture(autouse=True)
def stopped():
    yield
    if os.path.exists(CTL):
        ctl("stop")


def test_start_answers_and_status_tells():
    assert ctl("status").stdout.strip() == "stopped"
    assert ctl("start").returncode == 0
    assert ask() == 1
    assert is_service(pid())
    assert ctl("status").stdout.strip() == "running"


def test_a_second_start_leaves_it_alone():
    assert ctl("start").returncode == 0
    first = pid()
    assert ask() == 1
    assert ctl("start").returncode == 1
    assert pid() == first
    assert ask() == 2


def test_stop_ends_it():
    assert ctl("start").returncode == 0
    number = pid()
    assert ctl("stop").returncode == 0
    assert not is_service(number)
    assert not os.path.exists(PIDFILE)
    assert ctl("stop").returncode == 1
    assert ctl("status").stdout.strip() == "stopped"


def test_what_a_killed_service_left_does_not_matter():
    assert ctl("start").returncode == 0
    os.kill(pid(), signal.SIGKILL)
    for _ in range(100):
        if not is_service(pid()):
            break
        subprocess.run(["sleep", "0.05"])
    assert ctl("status").stdout.strip() == "stopped"
    assert ctl("start").returncode == 0
    assert ask() == 1
