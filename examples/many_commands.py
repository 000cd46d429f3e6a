"""Run a thousand commands from one event loop in one container, and never more than fifty at
once.
"""

import asyncio
import time

import hyperruntime as hr

COMMANDS, AT_ONCE = 1000, 50


async def main() -> None:
    """Run the commands, and print how it went."""
    gate = asyncio.Semaphore(AT_ONCE)
    with hr.open_runtime() as runtime:
        spec = hr.ContainerSpec(image=runtime.images.ensure("base"))
        async with await runtime.acontainer(spec) as container:

            async def one(number: int) -> bytes:
                async with gate:
                    result = await container.aexec(["echo", str(number)], timeout_s=30)
                    return result.check().stdout

            started = time.monotonic()
            outputs = await asyncio.gather(*(one(number) for number in range(COMMANDS)))
            seconds = time.monotonic() - started
    right = sum(output == f"{number}\n".encode() for number, output in enumerate(outputs))
    print(f"{right} of {COMMANDS} outputs are right")
    print(f"{COMMANDS / seconds:.0f} commands per second on this machine")


asyncio.run(main())
