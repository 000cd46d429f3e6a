"""Tools through a real pool: batches whose slots end, become stale or fail, and the interfaces for
agent loops.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.pool.tools.agent_tools import SlotTools
from hyperruntime.pool_values.results import ExecutionResult
from tests.contract.pools import make_pool

pytestmark = pytest.mark.engine


async def test_r2_r7_r9_an_agent_loop_works_through_both_interfaces(
    runtime: hr.Runtime, base_image: str
) -> None:
    async with make_pool(runtime, base_image) as pool, pool.lease("task") as lease:
        tools = SlotTools(lease.tool)
        calls: list[tuple[str, dict[str, Any]]] = [
            ("terminal", {"command": "mkdir -p src; cd src; pwd"}),
            ("write_file", {"path": "src/a b.py", "content": "x = 1\n"}),
            ("edit_file", {"path": "src/a b.py", "old": "1", "new": "2"}),
            ("terminal_stateful", {"command": "cd src; n=41"}),
            ("terminal_stateful", {"command": "echo $((n + 1)) *; exit 9"}),
            ("search", {"pattern": "x = [0-9]"}),
            ("execute_code", {"code": "import os"}),
            ("terminal", {"command": 7}),
        ]

        answers = [json.loads(await tools.tool_handler(name, args, "task")) for name, args in calls]

        assert answers[0] == {"output": f"{lease.slot.workspace}/src\n", "exit_code": 0}
        assert answers[1]["bytes"] == 6
        assert answers[4] == {"output": "42 a b.py\n", "exit_code": 9}
        assert answers[5]["output"] == "src/a b.py:1:x = 2"
        assert "unknown tool 'execute_code'" in answers[6]["error"]
        assert "must be text" in answers[7]["error"]
        assert [error.tool for error in tools.errors] == ["execute_code", "terminal"]
        result = await tools.exec_tool("bash", {"command": "cat 'src/a b.py'"})
        assert isinstance(result, ExecutionResult)
        assert (result.stdout, result.metadata["returncode"]) == ("x = 2\n", 0)


async def test_r19_a_policy_is_set_by_the_profile_or_for_one_call(
    runtime: hr.Runtime, base_image: str
) -> None:
    policy = hr.ToolPolicy(allow_network=False, tools=("terminal",))
    async with (
        make_pool(runtime, base_image, tools=policy) as pool,
        pool.lease("task") as lease,
    ):
        asked = {"command": "ls /sys/class/net; true", "allow_network": True}
        fine, other = await lease.tool("bash", asked), await lease.tool("terminal", asked)
        no_tool = await lease.tool("read_file", {"path": "x"})
        no_network = await lease.tool(
            "bash", {"command": "true"}, policy=hr.ToolPolicy(allow_network=True)
        )

        assert (fine.success, other.success) == (True, True)
        assert fine.stdout.split() in ([], ["lo"])
        facts = fine.metadata
        assert facts["ignored_arguments"] == ["allow_network"]
        assert (facts["network"], facts["sandboxed"]) == ("none", True)
        assert facts["isolation"] in ("uid", "container", "user")
        assert "not allowed here; allowed: bash, terminal" in no_tool.error
        assert no_tool.metadata["returncode"] is None
        assert "has none" in no_network.error
