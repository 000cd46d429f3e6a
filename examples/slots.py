"""Twenty tasks share two containers: each has a slot, and no slot shows what was in it before."""

import asyncio

import hyperruntime as hr


async def task(pool: hr.SlotPool, number: int) -> str:
    """Work in a slot of its own, and return what it saw there."""
    async with pool.lease(f"task-{number}") as lease:
        found = await lease.tool("bash", {"command": "ls -A | wc -l"})
        await lease.tool("write_file", {"path": "secret.txt", "content": f"of task {number}\n"})
        seen = await lease.tool("bash", {"command": "cat secret.txt ../*/secret.txt 2>/dev/null"})
        return (
            f"{found.stdout.strip()} files at first, then {sorted(set(seen.stdout.splitlines()))}"
        )


async def main() -> None:
    """Run the tasks, and print how many saw an empty workspace."""
    with hr.open_runtime() as runtime:
        config = hr.PoolConfig(
            spec=hr.ContainerSpec(image=runtime.images.ensure("base")),
            max_containers=2,
            acquire_timeout_s=300,
        )
        async with hr.SlotPool(runtime, config) as pool:
            results = await asyncio.gather(*(task(pool, number) for number in range(20)))
    right = [
        result == f"0 files at first, then ['of task {number}']"
        for number, result in enumerate(results)
    ]
    print(f"{sum(right)} of {len(right)} tasks had a clean workspace of their own")


asyncio.run(main())
