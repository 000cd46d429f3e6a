"""R11, W5: the next lease of a slot finds nothing of the lease before it, or does not get the
slot.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.errors import PoolError, SpecError, UnsupportedOptionError
from hyperruntime.layers.snapshots.snapshot import new_snapshot
from hyperruntime.pool.slots.isolation import UserIsolation
from tests.contract.pools import containers, make_pool, run, shell, until

pytestmark = pytest.mark.engine

FILES = r"""
touch .dot '..name' $'new\nline' ' -rf' $'\xff'
mkdir -p frozen/inner && touch frozen/inner/file && chmod -R a-w frozen && chmod 000 frozen
ln -s /etc link; ln -s / "$HOME/root"; mkfifo fifo
python3 -c '
import os
for _ in range(3000):
    os.mkdir("deep"); os.chdir("deep")
'
for place in /tmp /var/tmp /dev/shm /run/lock; do
    mkdir -p "$place/mine/.inner" && echo secret >"$place/mine/.inner/file" && chmod 555 "$place/mine/.inner"
    echo secret >"$place/.secret"; chmod 777 "$place/mine"
done
"""
PROCESSES = r"""
export MARK=left
setsid sh -c 'trap "" TERM HUP INT; while :; do echo x >/tmp/again; sleep 0.05; done' >/dev/null 2>&1 &
nohup setsid sleep 1000 >/dev/null 2>&1 &
(sleep 1000 & exec setsid sleep 1001) >/dev/null 2>&1 &
(unshare --user --pid --fork sleep 1002 || true) >/dev/null 2>&1 &
python3 -c '
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3):
            os.close(fd)
        os.chdir("/")
        time.sleep(1000)
'
"""
OBJECTS = r"""
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
made = [libc.shmget(1, 4096, 0o1666), libc.semget(2, 1, 0o1666), libc.msgget(3, 0o1666), libc.shmget(0, 4096, 0o1600)]
assert -1 not in made, made
with open("/dev/shm/posix", "wb") as file:
    file.write(b"secret")
try:
    os.close(os.open("/dev/mqueue/queue", os.O_CREAT | os.O_RDWR, 0o666))
except OSError:
    pass
"""


async def leave_and_look(
    runtime: hr.Runtime, image: str, script: str
) -> tuple[str, hr.SlotPool, Any]:
    """Run a script in a slot and reset the slot; return what the container still has of the slot's
    user.
    """
    async with make_pool(runtime, image) as pool:
        slot = await pool.acquire("untidy")
        uid = (await shell(pool.lease_of(slot), "id -u")).strip()
        await shell(pool.lease_of(slot), script)
        await pool.release(slot)
        await pool.settle()
        status = pool.status()
        assert (status.quarantined, status.free) == (0, status.total_slots)
        async with pool.lease("tidy") as lease:
            directories = ". ~ $TMPDIR" if status.reset == "clean" else "."
            assert await shell(lease, f"ls -A {directories} | grep -v : | tr -d '\\n'") == ""
        kept = slot.container in {container.name for container in containers(pool)}
        assert kept == (status.reset != "replace"), (
            "the container was discarded, which hides what the reset missed"
        )
        if status.reset != "clean":
            return "", pool, uid
        look = f"""
            find / -xdev -uid {uid} 2>/dev/null; find /dev/shm /dev/mqueue /tmp -uid {uid} 2>/dev/null
            ps -axo uid=,args= | grep '^ *{uid} '; cat /proc/sysvipc/* | grep ' {uid} '
            ls -A /tmp /var/tmp /dev/shm /run/lock | grep -v :
        """
        shown = containers(pool)[0].exec(["sh", "-c", look]).stdout.decode().strip()
    return shown, pool, uid


@pytest.mark.parametrize(
    "script",
    [FILES, PROCESSES, f"python3 - <<'END'\n{OBJECTS}\nEND"],
    ids=("files", "daemons", "ipc"),
)
async def test_w5_nothing_of_a_lease_is_left_after_its_reset(
    runtime: hr.Runtime, base_image: str, script: str
) -> None:
    shown, _, _ = await leave_and_look(runtime, base_image, script)
    assert shown == ""


EVERYWHERE = r"""
for place in / /etc /usr/bin /root /home /srv /tmp /var/tmp /dev/shm .; do echo secret >"$place/left"; done
rm -rf /usr/share/doc /etc/hostname; echo changed >>/etc/passwd; chmod 0777 /etc
mkdir -p /srv/theirs && touch /srv/theirs/file && chown -R 1234:1234 /srv/theirs
setsid sh -c 'trap "" TERM HUP INT; while :; do echo x >/tmp/again; sleep 0.05; done' >/dev/null 2>&1 &
setpriv --reuid 1234 --clear-groups setsid sleep 1234 >/dev/null 2>&1 &
"""
SHOWN = r"""
stat -c '%a %u %n' /etc /usr/share/doc; ls -A / /etc /usr/bin /root /home /srv /tmp /var/tmp /dev/shm .
cat /etc/passwd; ps -axo args= | grep -cE 'sleep (1234|0.05)$'; env | grep GIT
"""


def is_refused(address: tuple[str, int]) -> bool:
    with socket.socket() as client:
        return client.connect_ex(address) != 0


def rolls_back(runtime: hr.Runtime) -> bool:
    return runtime.info.snapshots and not runtime.info.slow_rollbacks


async def test_a_slot_with_a_container_of_its_own_begins_as_the_first_lease_did(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    async with make_pool(runtime, base_image, slots_per_container=1) as pool:
        slot = await pool.acquire("untidy")
        lease = pool.lease_of(slot)
        (container,) = [one for one in containers(pool) if one.name == slot.container]
        before = await lease.exec(["bash", "-c", SHOWN])
        await (await lease.shell()).arun("cd /; left=yes")
        await lease.put(tmp_path, "repository")
        await lease.exec(["bash", "-c", EVERYWHERE])
        address = await lease.forward(80)
        ended: list[str] = []
        container.on_end(lambda: ended.append(container.name))
        await pool.release(slot)
        await pool.settle()
        async with pool.lease("tidy") as lease:
            assert (await lease.exec(["bash", "-c", SHOWN])).stdout == before.stdout
            assert (await (await lease.shell()).arun("echo $left $PWD")).stdout == b"/workspace\n"
            assert (lease.slot.container == slot.container) == rolls_back(runtime)
            await until(lambda: is_refused(address))
            assert not (rolls_back(runtime) and (ended or pool.status().quarantined))
    assert ended


async def test_a_slot_begins_from_a_snapshot_and_its_next_reset_drops_it(
    runtime: hr.Runtime, base_image: str
) -> None:
    fresh = new_snapshot(runtime.name, base_image, ())
    look = ["sh", "-c", "ls / /workspace | grep prepared"]

    async with make_pool(runtime, base_image, slots_per_container=1) as pool:
        if not runtime.info.snapshots:
            with pytest.raises(UnsupportedOptionError, match="base: it has no snapshots"):
                await pool.acquire(base=fresh)
            return
        with runtime.container(hr.ContainerSpec(image=base_image)) as container:
            container.exec(["mkdir", "-p", "/workspace/prepared.d", "/prepared"]).check()
            base = container.snapshot()
        async with pool.lease(base=base) as lease:
            first = lease.slot.container
            assert (await lease.exec(look)).stdout == b"prepared\nprepared.d\n"
        async with pool.lease("mine") as lease:
            assert (await lease.exec(look)).stdout == b""
            await lease.exec(["touch", "/workspace/prepared.mine"])
            await lease.release(reset_workspace=False)
        async with pool.lease("mine", base=base) as lease:
            assert (await lease.exec(look)).stdout == b"prepared\nprepared.d\n"
            assert not rolls_back(runtime) or lease.slot.container == first
        with pytest.raises(SpecError, match="base"):
            await pool.acquire(base=attrs.evolve(base, image="another"))
        with pytest.raises(SpecError, match="a snapshot whose runtime is open"):
            await pool.acquire(base=attrs.evolve(base, layers=("/missing",)))
        async with pool.lease() as lease:
            assert not rolls_back(runtime) or lease.slot.container == first
            assert (await lease.exec(look)).stdout == b""
    if runtime.info.users:
        async with make_pool(runtime, base_image) as pool:
            with pytest.raises(UnsupportedOptionError, match="base: slots of this pool share"):
                await pool.acquire(base=fresh)


async def test_r11_a_fork_bomb_ends_with_its_lease_and_does_not_affect_its_sibling(
    runtime: hr.Runtime, base_image: str
) -> None:
    async with make_pool(runtime, base_image, pids_per_slot=40, max_containers=2) as pool:
        bomber, sibling = await pool.acquire("bomber"), await pool.acquire("sibling")
        bomb = "b() { b | b & }; b 2>/dev/null; sleep 0.5"
        await pool.lease_of(bomber).exec(["bash", "-c", bomb], timeout_s=20)
        assert (
            await shell(pool.lease_of(sibling), "for n in 1 2 3 4 5; do /bin/echo $n; done")
        ).split() == list("12345")
        await pool.release(bomber)
        await pool.settle()
        assert pool.status().quarantined == 0
        assert pool.status().leased == 1
        again = await pool.acquire("next")
        assert (
            await shell(pool.lease_of(again), "ps -axo args= | grep -c '[b] | b' || true")
        ).strip() == "0"


async def test_r11_a_slot_that_is_not_verified_clean_is_quarantined_and_its_container_replaced(
    runtime: hr.Runtime, base_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that the reset cannot remove stands for anything that a kernel may keep."""
    if not runtime.info.users:
        with pytest.raises(UnsupportedOptionError, match="user"):
            runtime.container(hr.ContainerSpec(image=base_image, user="65534:65534"))
        return

    async with make_pool(runtime, base_image, max_containers=2) as pool:
        spoilt, sibling = await pool.acquire("spoilt"), await pool.acquire("sibling")
        uid = (await shell(pool.lease_of(spoilt), "id -u")).strip()
        keep = f"touch /tmp/kept && chown {uid} /tmp/kept"
        containers(pool)[0].exec(["sh", "-c", keep])
        monkeypatch.setattr("hyperruntime.pool.slots.scripts.REMOVE_OWN", "true")
        await pool.release(spoilt)
        await pool.settle()
        assert pool.status().quarantined == 1
        assert (await shell(pool.lease_of(sibling), "echo fine")) == "fine\n"
        other = await pool.acquire("other")
        assert other.container != spoilt.container
        await pool.release(sibling)
        while spoilt.container in {container.name for container in containers(pool)}:
            await asyncio.sleep(0.02)


def test_w8_world_writable_files_of_an_image_do_not_connect_slots(
    runtime: hr.Runtime, base_image: str
) -> None:
    if not runtime.info.users:
        assert hr.PoolConfig(spec=hr.ContainerSpec(image=base_image)).slots_per_container is None
        return
    with runtime.container(hr.ContainerSpec(image=base_image)) as container:
        loose = (
            "mkdir -m 777 /srv/open && touch /srv/open/file /srv/file && chmod 666 "
            "/srv/open/file /srv/file"
        )
        container.exec(["sh", "-c", loose]).check()
        config = hr.PoolConfig(spec=hr.ContainerSpec(image=base_image), slots_per_container=2)
        from hyperruntime.pool_values.config import make_layout

        layout = make_layout(config, users=True, driver=runtime.name)
        first, second = UserIsolation(config, layout).prepare(container)
        as_first = {"user": first.user, "workdir": first.workspace}
        assert container.exec(["sh", "-c", "echo x >/srv/file"], **as_first).exit_code != 0
        assert container.exec(["sh", "-c", "echo x >/srv/open/file"], **as_first).exit_code != 0
        container.exec(["sh", "-c", "echo mine >/srv/open/mine"], **as_first).check()
        theft = ["sh", "-c", "mv /srv/open/mine /srv/open/yours; rm -f /srv/open/yours"]
        container.exec(theft, user=second.user, workdir=second.workspace)
        assert container.exec(["cat", "/srv/open/mine"], **as_first).stdout == b"mine\n"


async def test_a_reset_does_not_change_the_mounts_of_a_spec(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    (tmp_path / "inner").mkdir()
    for directory in (tmp_path, tmp_path / "inner"):
        directory.chmod(0o777)
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o666)
    before = {path.name: path.stat().st_mode for path in (tmp_path, *tmp_path.iterdir())}

    mounts = (hr.Mount(source=str(tmp_path), target="/srv/shared", read_only=False),)
    async with make_pool(
        runtime, base_image, spec=hr.ContainerSpec(image=base_image, mounts=mounts)
    ) as pool:
        async with pool.lease("writer") as lease:
            await shell(lease, "umask 0; echo kept | tee /srv/shared/kept >/srv/shared/inner/kept")
        await pool.settle()
        assert pool.status().quarantined == 0
        async with pool.lease("reader") as lease:
            assert (
                await shell(lease, "cat /srv/shared/kept /srv/shared/inner/kept") == "kept\nkept\n"
            )
        await pool.settle()
    assert {name: mode for name, mode in before.items() if name != "kept"} == {
        path.name: path.stat().st_mode
        for path in (tmp_path, *tmp_path.iterdir())
        if path.name != "kept"
    }


def test_slots_work_in_an_image_with_busybox_only(runtime: hr.Runtime, busybox_image: str) -> None:
    async def work() -> None:
        async with make_pool(runtime, busybox_image) as pool:
            leave = (
                "id -u; touch .f /dev/shm/f; mkdir -p a/b; chmod 0 a; setsid sleep 1004 "
                ">/dev/null 2>&1 &"
            )
            async with pool.lease() as lease:
                uid = (await lease.exec(["sh", "-c", leave])).check().stdout.decode().strip()
            await pool.settle()
            assert pool.status().quarantined == 0
            async with pool.lease() as lease:
                assert (
                    await lease.exec(["ls", "-A", ".", "/dev/shm"])
                ).stdout.decode().split() == [".:", "/dev/shm:"]
                assert b"1004" not in (await lease.exec(["ps", "-o", "args"])).stdout
                if runtime.info.users:
                    assert (await lease.exec(["id", "-u"])).stdout.decode().strip() != uid

    if runtime.name in ("apptainer", "bubblewrap") and runtime.info.users:
        with pytest.raises(UnsupportedOptionError, match="slots_per_container to 1"):
            run(work)  # busybox cannot change to a numeric user, and the engine attaches no shell
        return
    run(work)


async def test_an_image_whose_programs_cannot_clean_is_refused_for_several_slots(
    runtime: hr.Runtime, base_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperruntime.pool.slots.scripts.REMOVE_OWN", "true")

    async with (
        make_pool(runtime, base_image, slots_per_container=1) as pool,
        pool.lease() as lease,
    ):
        assert (await lease.exec(["pwd"])).stdout == b"/workspace\n"
    if runtime.info.users:
        with pytest.raises(PoolError, match="could not be prepared for a lease: file /"):
            await make_pool(runtime, base_image).start()
        monkeypatch.setattr(
            "hyperruntime.pool.slots.scripts.FIND_WRITABLE", "exec find-that-is-missing"
        )
        with pytest.raises(PoolError, match=r"use an image with find.*slots_per_container=1"):
            await make_pool(runtime, base_image).start()
