"""A tiny environment for the tests: the agent must write a number into a file."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.images.store import ImageStore
from hyperruntime.rollout.environment import Fresh, Item, Outcome, Verdict
from hyperruntime.sandbox import Sandbox
from hyperruntime.spec import ContainerSpec

WORLD = f"{Path(__file__)}:World"


def rollout(url: str, run_dir: Path, *more: str) -> list[str]:
    """Return the words of the command that runs rollouts in this environment."""
    options = [f"--environment={WORLD}", "--model=m", f"--base-url={url}"]
    return ["rollout", "run", *options, f"--output-dir={run_dir}", *more]


class World:
    """The first message names the number for ``answer.txt``; a fresh container compares the file
    with it.
    """

    name = "world"

    def __init__(self, count: int = 2) -> None:
        self.count = count

    def items(self) -> Iterable[Item]:
        return [Item(id=f"n{number}", data={"number": number}) for number in range(self.count)]

    def spec(self, item: Item, base: ContainerSpec, images: ImageStore) -> ContainerSpec:
        return base

    async def setup(self, item: Item, lease: Sandbox) -> Mapping[str, Any]:
        (await lease.exec(["sh", "-c", "echo broken > answer.txt"])).check()
        return {"workspace": lease.slot.workspace}

    def messages(self, item: Item, meta: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        return [{"role": "user", "content": f"Make answer.txt hold {item.data['number']}."}]

    async def verify(
        self, item: Item, outcome: Outcome, lease: Sandbox, fresh: Fresh, meta: Mapping[str, Any]
    ) -> Verdict:
        still = await lease.exec(
            [
                "sh",
                "-c",
                "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o '[s]leep 77'",
            ]
        )
        found = await lease.exec(["cat", "answer.txt"])
        async with fresh() as judge:
            used = await judge.exec(["ls", "-A"])
            right = await judge.exec(
                ["test", found.stdout.decode().strip(), "=", str(item.data["number"])]
            )
        return Verdict(
            reward=float(right.exit_code == 0),
            phase="tests",
            facts={"left": still.stdout.decode(), "judged_in": used.stdout.decode()},
        )


class OwnImages(World):
    """Each item names the image of its containers."""

    def spec(self, item: Item, base: ContainerSpec, images: ImageStore) -> ContainerSpec:
        return attrs.evolve(base, image=images.ensure("localhost/hyperruntime/base:latest"))
