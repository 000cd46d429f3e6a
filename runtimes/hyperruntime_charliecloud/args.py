"""Turn a spec into the job that starts a container. Sources: ch-run(1) of 0.31 and 0.45, unshare(1)
of util-linux 2.38.

``ch-run`` makes a user and a mount namespace. ``unshare`` around it makes the others, and
:mod:`~hyperruntime_charliecloud.enter` between them makes the mounts, and gives up all rights.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from hyperruntime.driver import Launch
from hyperruntime.host.engine_program import HOSTS, has_own_hosts, needs_own_tmp, shell_args
from hyperruntime.host.inherited import process_ceiling, stricter
from hyperruntime.host.process import find_program, python_args
from hyperruntime.layers.images import ImageSource
from hyperruntime.layers.namespace import Job, Layers
from hyperruntime.layers.records import Records
from hyperruntime.spec import Mount

NAME = "charliecloud"
RECORDS = Records(NAME)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV = {"PATH": PATH, "USER": "root", "HOME": "/root"}  # of our programs on the host
ENTER = str(Path(__file__).with_name("enter.py"))
NETWORK_FILES = ("/etc/hosts", "/etc/resolv.conf")
OWN_HOSTS = str(Path(__file__).with_name("hosts"))
UNSHARE = "unshare --mount --pid --ipc --uts --cgroup --mount-proc --fork --kill-child=KILL".split()
# what `ch-run` mounts over the image's files is unmounted again, except /dev, /proc and /sys
OPTIONS = ("--private-tmp", "--no-passwd", "--uid=0", "--gid=0")
TMP = "/tmp"  # noqa: S108 - in the container
DIRECTORIES = {"/dev": 0o755, "/proc": 0o755, "/sys": 0o755, TMP: 0o1777, "/var/tmp": 0o1777}  # noqa: S108


def make_job(
    launch: Launch, source: ImageSource, files: str, layers: Layers | None, filter_path: str
) -> Job:
    """Return the job that starts a container with a shell attached.

    Args:
        launch: the container to start.
        source: the image's configuration.
        files: the container's directory.
        layers: the layers to mount at its root; None means that its files are copies.
        filter_path: file of the seccomp filter, or "" for none.
    """
    spec = launch.spec
    limits = spec.limits
    root = layers.at if layers else f"{files}/root"
    workdir = spec.workdir or source.workdir
    # builds of Podman do not make the image's own directory
    made = {**({workdir: 0o755} if workdir == source.workdir else {}), **DIRECTORIES}
    memory = (
        {TMP: limits.tmpfs_bytes} if limits.tmpfs_bytes is not None or needs_own_tmp(spec) else {}
    )
    shown = (
        {OWN_HOSTS: NETWORK_FILES[0]}
        if spec.network == "none"
        else {path: path for path in NETWORK_FILES}
    )
    if has_own_hosts(spec):
        shown = {path: at for path, at in shown.items() if at != HOSTS}
    own = (Mount(source=path, target=at) for path, at in shown.items() if os.path.exists(path))
    mounts = (*own, launch.exchange, *spec.mounts)
    facts = {
        "hostname": launch.name[:63],
        "filter": filter_path,
        "shm": limits.shm_bytes,
        "made": list(made.values()),
        "memory": list(memory.values()),
        "mounts": [(os.path.abspath(mount.source), mount.read_only) for mount in mounts],
        "command": [
            find_program("ch-run") or "ch-run",
            *OPTIONS,
            *["--write"] * (not spec.read_only_rootfs),
        ],
        "args": shell_args(workdir, is_init=True),
        "env": {"PATH": PATH, "HOME": "/root", **source.env},
    }
    network = ["--net"] * (spec.network == "none" and launch.joins is None)
    args = [*UNSHARE, *network, *python_args("-I", "-S", ENTER), root, json.dumps(facts)]
    targets = (*made, *memory, *(mount.target for mount in mounts))
    return Job(
        program=find_program("unshare") or "unshare",
        args=(*args, *targets),
        env=ENV,
        directory=files,
        record=RECORDS.path_of(launch.name),
        layers=layers,
        root=root,
        inside=tuple(range(len(args), len(args) + len(targets))),
        limits={}
        if limits.pids is None
        else {"RLIMIT_NPROC": stricter(limits.pids, process_ceiling())},
    )
