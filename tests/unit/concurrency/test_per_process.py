"""Mutable states of modules are one per process: a child that is forked while their locks are held
can use them.
"""

from __future__ import annotations

import ast
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from hyperruntime.adapters import environment, shared_runtime
from hyperruntime.concurrency import blocking, poller
from hyperruntime.host import disk, keeper, owner, watchdog
from hyperruntime.host.disk import DiskWatch, Free, free_space
from hyperruntime.host.process import ProcessLimits
from hyperruntime.pool.slots import isolation
from hyperruntime.runtime import Runtime
from hyperruntime.spec import ContainerSpec, Limits
from hyperruntime.testing import FakeDriver
from hyperruntime_docker import client, shell

ROOT = Path(__file__).parents[3]
PACKAGES = (
    "hyperruntime",
    "runtimes",
    "domains",
    "environments",
    "trainers",
    "integrations",
    "containers",
)
HOOKED = {("owner.py", "_held"), ("owner.py", "_fork_hook")}  # the hook for forked children itself
FILLED_ON_IMPORT = {("check.py", "CHECKS")}
COLLECTIONS = ("dict", "list", "set", "deque", "OrderedDict", "Counter", "WeakSet")
ALWAYS = (  # whatever their arguments are
    "Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier", "local", "Queue", "SimpleQueue",
    "LifoQueue", "PriorityQueue", "ThreadPoolExecutor", "ProcessPoolExecutor", "defaultdict", "WeakKeyDictionary",
    "WeakValueDictionary",
)  # fmt: skip
Held = AbstractContextManager[object]
_AMPLE = ProcessLimits(memory_bytes=1 << 30, output_bytes=1 << 20)
ENGINE = client.Engine()


def ends_the_largest() -> bool:
    """Return whether the rule for a full disk works: the largest container ends."""
    ended: list[str] = []
    (device,) = free_space(["/"])
    watch = DiskWatch(1 << 60, ["/"], None, lambda why, _: ended.append(why))
    why = watch._judge_low(device, Free(0, 0))
    watch.stop()
    return why.startswith("the disk has only")


def polls() -> bool:
    ready, (read, write) = threading.Event(), os.pipe()

    def take() -> None:
        os.read(read, 1)
        ready.set()

    poller.poller().add(read, take)
    os.write(write, b"x")
    return ready.wait(20)


def no_one() -> None:
    return


def takes_turn() -> bool:
    (turn := shell.EndTurn()).take()
    return turn._held is not None


def holder() -> owner.HoldsDescriptors:
    class Holder:
        def descriptors(self) -> tuple[int, ...]:
            return ()

    return Holder()


STATES: dict[str, tuple[Callable[[], Held], Callable[[], object]]] = {
    "pools of HyperEnvironment": (
        lambda: environment._shared.get().lock,
        lambda: environment.shared_pool("fake", ContainerSpec(image="base")),
    ),
    "end of these pools": (lambda: environment._shared.get().lock, environment.close_shared_pools),
    "shared runtimes": (
        lambda: shared_runtime._open.get().lock,
        lambda: shared_runtime.shared_runtime("fake"),
    ),
    "rule of the disk": (lambda: disk._watched.get().lock, ends_the_largest),
    "watchdog": (
        lambda: watchdog._watchers.get()._changed,
        lambda: watchdog.unwatch(watchdog.Watch(Limits(), None, no_one)),
    ),
    "kept programs": (
        lambda: keeper._programs.get()._lock,
        lambda: keeper.run_kept(["true"], env={}, timeout_s=60, limits=_AMPLE).exit_code == 0,
    ),
    "poller": (lambda: poller.poller()._lock, polls),
    "threads": (
        lambda: blocking.threads(blocking.EXECS)._lock,
        lambda: blocking.threads(blocking.EXECS).submit(lambda: True).result(20),
    ),
    "user ids": (
        lambda: isolation._taken.get().lock,
        lambda: isolation.Users("0 0 4294967295").take(),
    ),
    "owners": (lambda: owner._fork_hook, lambda: owner.release_on_fork(holder())),
    "turn of Docker": (shell._one_at_a_time.get, takes_turn),
    "clients of Docker": (lambda: ENGINE._clients.get().lock, ENGINE.close),
}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of Python 3.12
@pytest.mark.parametrize("state", STATES)
def test_a_child_that_is_forked_while_the_lock_of_a_state_is_held_can_use_the_state(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_runtime, "open_runtime", lambda _: Runtime(FakeDriver()))
    owner.release_on_fork(holder())  # so that the hook is there
    lock, use = STATES[state]
    with lock():
        child = os.fork()
        if child == 0:
            worked: list[object] = []
            using = threading.Thread(target=lambda: worked.append(use()), daemon=True)
            using.start()
            using.join(60)
            os._exit(0 if worked and worked[0] is not False else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names and values that a module assigns, and the locks that its classes assign."""
    inner = [
        (node, True) for one in tree.body if isinstance(one, ast.ClassDef) for node in one.body
    ]
    for node, in_class in [*((node, False) for node in tree.body), *inner]:
        if (
            not isinstance(node, ast.Assign | ast.AnnAssign)
            or node.value is None
            or not is_mutable(node.value)
        ):
            continue
        if not in_class or "Lock" in ast.unparse(node.value):
            yield (
                ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target),
                node.value,
            )


def is_mutable(value: ast.expr) -> bool:
    """Return whether a value is a lock, or an empty collection, which can only be there to be
    changed.
    """
    if isinstance(value, ast.Call):
        name = ast.unparse(value.func).rpartition(".")[2]
        return name in ALWAYS or (name in COLLECTIONS and not value.args)
    return (isinstance(value, ast.List) and not value.elts) or (
        isinstance(value, ast.Dict) and not value.keys
    )


def test_no_module_has_a_mutable_state_that_a_forked_child_shares() -> None:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    ours = [
        path for path in paths if not {"agents", "inside", "tasks", "exercises"} & set(path.parts)
    ]
    found = {
        (path.name, name) for path in ours for name, _ in assigned(ast.parse(path.read_text()))
    }
    assert found == HOOKED | FILLED_ON_IMPORT
