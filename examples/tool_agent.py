"""An agent that calls tools until it is done. The model is a script; any OpenAI-compatible server
would do.
"""

import asyncio
import json
import urllib.request
from typing import Any

import hyperruntime as hr
from hyperruntime.pool.tools import tool_schemas
from hyperruntime.testing.model import calls, says, scripted_model

SCRIPT = [
    calls(
        write_file={
            "path": "primes.py",
            "content": "print([n for n in range(2, 30) if all(n % d for d in range(2, n))])",
        }
    ),
    calls(bash={"command": "python3 primes.py"}),
    says("The primes below 30 are in primes.py."),
]


def ask(url: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the model's next message."""
    body = json.dumps(
        {"model": "any", "messages": messages, "tools": list(tool_schemas())}
    ).encode()
    request = urllib.request.Request(
        f"{url}/chat/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
        return message


async def work(url: str, lease: hr.Sandbox, task: str) -> str:
    """Let the model use the tools of a slot, and return its last words."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    while True:
        message = await asyncio.to_thread(ask, url, messages)
        messages.append(message)
        if not message.get("tool_calls"):
            return str(message["content"])
        for call in message["tool_calls"]:
            function = call["function"]
            result = await lease.tool(function["name"], json.loads(function["arguments"]))
            print(f"{function['name']}: {(result.output or result.error).strip()[:60]}")
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": call["id"],
                    "content": result.output or result.error,
                }
            )


async def main() -> None:
    """Run the agent in a slot."""
    with scripted_model(SCRIPT) as model, hr.open_runtime() as runtime:
        spec = hr.ContainerSpec(image=runtime.images.ensure("base"))
        async with (
            hr.SlotPool(runtime, hr.PoolConfig(spec=spec)) as pool,
            pool.lease("agent") as lease,
        ):
            print(await work(model.url, lease, "Write the primes below 30."))


asyncio.run(main())
