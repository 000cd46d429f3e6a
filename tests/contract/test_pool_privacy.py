"""W8, W14: a hostile slot learns only that a sibling in its container exists, and cannot harm
it.
"""

from __future__ import annotations

import asyncio
import json

import pytest

import hyperruntime as hr
from tests.contract.pools import make_pool, shell

pytestmark = pytest.mark.engine

SECRET = "correct horse battery staple"
VICTIM = f"""
for place in . ~ $TMPDIR; do echo {SECRET!r} >$place/secret; done
for place in /tmp /var/tmp /dev/shm; do
    mkdir $place/victim.d; echo {SECRET!r} | tee $place/victim >$place/victim.d/f
done
KEPT={SECRET!r} setsid python3 -c "import time; secret = '-'.join(list({SECRET!r})); time.sleep(1000)" >/dev/null 2>&1 &
echo $PWD $HOME $TMPDIR
"""
ATTACKER = r"""
import ctypes, json, os, signal, sys

areas, done = sys.argv[1:], []
own = os.getuid()


def attempt(name, act):
    try:
        act()
    except (OSError, ValueError):
        return
    done.append(name)


def read(path, size=1 << 16):
    with open(path, "rb") as file:
        file.read(size)


def write(path):
    with open(path, "ab") as file:
        file.write(b"x")


for area in areas:
    attempt(f"list {area}", lambda: os.listdir(area))
    attempt(f"read {area}", lambda: read(area + "/secret"))
    attempt(f"write {area}", lambda: write(area + "/new"))
    attempt(f"enter {area}", lambda: os.chdir(area))
    attempt(f"open up {area}", lambda: os.chmod(area, 0o777))
attempt("list /slots", lambda: os.listdir("/slots"))
attempt("swap a slot", lambda: os.rename(os.path.dirname(areas[0]), "/slots/other"))
for place in ("/tmp", "/var/tmp", "/dev/shm"):
    for name in ("victim", "victim.d/f"):
        attempt(f"read {place}/{name}", lambda: read(f"{place}/{name}"))
        attempt(f"write {place}/{name}", lambda: write(f"{place}/{name}"))
    attempt(f"list {place}", lambda: os.listdir(f"{place}/victim.d"))
    attempt(f"move {place}", lambda: os.rename(f"{place}/victim", f"{place}/mine"))
    attempt(f"remove {place}", lambda: os.unlink(f"{place}/victim"))
    attempt(f"link {place}", lambda: os.link(f"{place}/victim", f"{place}/linked"))
libc = ctypes.CDLL(None, use_errno=True)


def trace(pid):
    if libc.ptrace(16, pid, 0, 0) != 0:  # PTRACE_ATTACH
        raise OSError


others = 0
for name in os.listdir("/proc"):
    try:
        if not name.isdigit() or os.stat("/proc/" + name).st_uid == own:
            continue
    except OSError:
        continue
    others += 1
    for file in ("environ", "mem", "maps", "syscall", "stack", "auxv", "io", "map_files"):
        attempt(f"{file} of {name}", lambda: (os.listdir if file == "map_files" else read)(f"/proc/{name}/{file}"))
    for link in ("cwd", "root", "exe"):
        attempt(f"{link} of {name}", lambda: os.readlink(f"/proc/{name}/{link}"))
    attempt(f"descriptors of {name}", lambda: os.listdir(f"/proc/{name}/fd"))
    for number in (0, signal.SIGCONT, signal.SIGTERM):
        attempt(f"signal {number} to {name}", lambda: os.kill(int(name), number))
    attempt(f"trace {name}", lambda: trace(int(name)))
attempt("list the exchange", lambda: os.listdir("/run/hyperruntime"))
attempt("write the exchange", lambda: write("/run/hyperruntime/supervisor.sh"))
attempt("become root", lambda: os.setuid(0))
print(json.dumps({"done": done, "others": others, "own": own}))
"""


async def test_w8_w14_a_hostile_slot_cannot_read_write_kill_or_trace_its_sibling(
    runtime: hr.Runtime, base_image: str
) -> None:
    """If the engine has no users, the test only checks that each slot has its own container."""

    async with make_pool(runtime, base_image, max_containers=2) as pool:
        victim, hostile = await pool.acquire("victim"), await pool.acquire("hostile")
        areas = (await shell(pool.lease_of(victim), VICTIM)).split()
        if not runtime.info.users:
            assert hostile.container != victim.container
            return
        assert hostile.container == victim.container
        script = ["python3", "-", *areas]
        result = await pool.lease_of(hostile).exec(script, input=ATTACKER.encode())
        report = json.loads(result.check().stdout)
        assert report["done"] == []
        assert report["others"] >= 3
        assert report["own"] > 0
        alive = "pgrep -c -f '[t]ime.sleep'; cat secret /tmp/victim"
        assert (await shell(pool.lease_of(victim), alive)).splitlines() == ["1", SECRET, SECRET]


async def test_w8_a_slot_has_private_directories(runtime: hr.Runtime, base_image: str) -> None:
    async with make_pool(runtime, base_image) as pool, pool.lease("one") as lease:
        script = "umask; pwd; touch f ~/f && stat -c %a . f && dirname $(mktemp)"
        mask, where, mode, file_mode, temporary = (await shell(lease, script)).split()
        assert where == lease.slot.workspace
        if runtime.info.users:
            assert (mask, mode, file_mode) == ("0077", "700", "600")
            assert temporary.startswith(where.removesuffix("/workspace"))


SERVER = r"""
import ctypes, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
print(libc.shmget(4711, 4096, 0o1666), libc.shmget(4712, 4096, 0o1600), flush=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind("\0agent")
listener.listen()  # now the client, which tries until then, finds all
listener.accept()[0].sendall(b"answer")
"""
CLIENT = r"""
import ctypes, json, socket, time
libc = ctypes.CDLL(None, use_errno=True)
while True:
    try:
        client = socket.socket(socket.AF_UNIX)
        client.connect("\0agent")
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
opened = [libc.shmget(key, 0, 0o600) >= 0 for key in (4711, 4712)]
print(json.dumps({"answer": client.recv(100).decode(), "opened": opened}))
"""


async def test_slots_share_abstract_sockets_and_system_v_objects_that_are_open_to_all(
    runtime: hr.Runtime, base_image: str
) -> None:
    """docs/pool.md says so: abstract sockets have no mode, and a System V object of mode 0600 stays
    private.
    """
    if not runtime.info.users:
        pytest.skip("each slot has its own container")

    async with make_pool(runtime, base_image) as pool:
        server, client = await pool.acquire("server"), await pool.acquire("client")
        assert server.container == client.container
        serving = asyncio.ensure_future(
            pool.lease_of(server).exec(["python3", "-c", SERVER], timeout_s=60)
        )
        result = await pool.lease_of(client).exec(["python3", "-c", CLIENT], timeout_s=60)
        assert json.loads(result.check().stdout) == {
            "answer": "answer",
            "opened": [True, False],
        }
        await serving
