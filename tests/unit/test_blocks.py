"""The code blocks of the pages, without an engine: syntax, options, and data as the product reads
it.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import click
import pytest
import yaml

from hyperdomain_math import Math
from hyperdomain_table.definition import load_definition
from hyperruntime import registry
from hyperruntime.adapters.compose import read_compose
from hyperruntime.cli.app import app
from hyperruntime.cli.config_file import config_table, generate_table
from hyperruntime.cluster.config import read_config
from hyperruntime.gateway.config.source import load_config
from hyperruntime.gateway.config.values import ClientLimits
from hyperruntime.loop.run_files.contract import parse_contract, parse_needs
from hyperruntime.pool_values.config import PoolConfig
from hyperruntime.pool_values.profiles import load_profiles, parse_profile
from hyperruntime_pytest.pools import table_of
from tests.blocks import DATA, NOTES, PAGES, PLAIN, ROOT, SHELLS, Block, blocks

ALL = [block for page in PAGES for block in blocks(page)]
GROUPS = {
    value
    for name, value in vars(registry).items()
    if name.isupper() and str(value).startswith("hyperruntime.")
}


def of(*languages: str) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in ALL if block.language in languages]


def test_every_block_has_a_known_language_and_known_notes() -> None:
    known = ("python", *SHELLS, *DATA, *PLAIN)
    assert [
        f"{block}: {block.language or 'none'}" for block in ALL if block.language not in known
    ] == []
    assert [str(block) for block in ALL if not block.notes.keys() <= set(NOTES)] == []
    assert [str(block) for block in ALL if block.notes.get("fragment") == ""] == [], (
        "a fragment has a reason"
    )
    assert [
        str(block)
        for block in ALL
        if block.language == "console" and not block.text.startswith("$ ")
    ] == []


def test_few_python_blocks_are_fragments() -> None:
    programs = [block for block in ALL if block.language == "python"]
    assert len([block for block in programs if "fragment" in block.notes]) <= len(programs) / 4


@pytest.mark.parametrize("block", [p for p in of("python") if "part" not in p.values[0].notes])
def test_python_has_valid_syntax(block: Block) -> None:
    compile(
        textwrap.dedent(block.text),
        str(block),
        "exec",
        flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
        dont_inherit=True,
    )


def test_parts_of_files_are_as_in_the_file() -> None:
    parts = [block for block in ALL if "part" in block.notes]
    assert len(parts) > 3
    assert [
        str(block) for block in parts if block.text not in (ROOT / block.notes["part"]).read_text()
    ] == []


@pytest.mark.parametrize("block", of(*SHELLS))
def test_shell_has_valid_syntax_and_existing_options(block: Block) -> None:
    script = "".join(command for command, _ in block.commands())
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    for line in script.replace("\\\n", "").splitlines():
        words = shlex.split(line, comments=True)
        if "hyperrun" in words:
            assert unknown_options(words[words.index("hyperrun") + 1 :]) == [], line


def command_of(*names: str) -> click.Command:
    command: click.Command = app
    for name in names:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command


def unknown_options(words: list[str]) -> list[str]:
    """Return the options on a command line that the command does not have."""
    command: click.Command = app
    unknown = []
    for word in words:
        if word == "--":
            break
        if word.startswith("--"):
            known = {
                opt for param in command.params for opt in (*param.opts, *param.secondary_opts)
            } | {"--help"}
            unknown += [word] if word.partition("=")[0] not in known else []
        elif isinstance(command, click.Group):
            command = command.get_command(click.Context(command), word) or command
    return unknown


def read_agent_file(path: Path) -> None:
    parse_contract(path.read_bytes())
    parse_needs(path.read_bytes())


def read_limits(path: Path) -> None:
    """A page that shows only the limits shows the defaults."""
    path.write_text(f"{path.read_text()}[gateway]\nupstreams = []\nmodels = []\n")
    assert load_config(path).limits == ClientLimits()


def read_gateway(path: Path) -> None:
    table = tomllib.loads(path.read_text())["gateway"]
    read_limits(path) if table.keys() == {"limits"} else load_config(path)


def read_table(path: Path) -> None:
    for split in tomllib.loads(path.read_text())["splits"].values():
        path.with_name(split["file"]).touch()
    load_definition(str(path))


def read_project(path: Path) -> None:
    groups = tomllib.loads(path.read_text())["project"]["entry-points"]
    assert groups.keys() <= GROUPS
    assert all(
        re.fullmatch(r"[\w.]+:\w+", value) for group in groups.values() for value in group.values()
    )


def read_sandbox(path: Path) -> object:
    """Read the configuration of a sandbox as hyperruntime_inspect_ai does, which needs its
    framework.
    """
    table = tomllib.loads(path.read_text())
    return parse_profile(
        "sandbox", {key: value for key, value in table.items() if key != "runtime"}
    )


def read_clients(path: Path) -> None:
    """Read what a client of MCP starts, or where it finds a server that runs."""
    value = json.loads(path.read_text())
    for server in (value.get("mcpServers") or value["servers"]).values():
        if "command" in server:
            assert (server["command"], server["args"][0]) == ("hyperrun", "mcp")
            assert unknown_options(server["args"]) == []
        else:
            assert server["url"].endswith("/mcp")
            assert server["headers"].keys() == {"Authorization"}


def read_ini(path: Path) -> PoolConfig:
    """Read the lines for the plug-in of pytest."""
    lines = tomllib.loads(path.read_text())["tool"]["pytest"]["ini_options"]["hyperruntime"]
    keys = table_of(lines)
    assert keys.pop("runtime") in registry.AUTO_ORDER
    return parse_profile("pytest", keys)


# By a key at the top of the file.
def read_certificate(path: Path) -> None:
    assert Math().certify(json.loads(path.read_text())).valid


READERS: dict[str, Callable[[Path], object]] = {
    "commands": read_agent_file,
    "contract": read_agent_file,
    "agent": read_agent_file,
    "gateway": read_gateway,
    "generate": lambda path: config_table(path, command_of("generate")),
    "rollout": lambda path: generate_table(path, command_of("rollout", "run"), "rollout"),
    "profiles": load_profiles,
    "splits": read_table,
    "services": read_compose,
    "cluster": read_config,
    "project": read_project,
    "runtime": read_sandbox,
    "mcpServers": read_clients,
    "servers": read_clients,
    "tool": read_ini,
    "certificate": read_certificate,
}


@pytest.mark.parametrize("block", [p for p in of(*DATA) if "part" not in p.values[0].notes])
def test_data_is_what_the_product_reads(block: Block, tmp_path: Path) -> None:
    value = (
        yaml.safe_load(block.text)
        if block.language in ("yaml", "json")
        else tomllib.loads(block.text)
    )
    readers = [READERS[key] for key in value if key in READERS]
    assert readers, f"{block}: name the reader of this file in READERS"
    path = tmp_path / block.notes.get("file", f"file.{block.language}")
    path.write_text(block.text)
    readers[0](path)


def test_notes_outputs_and_continuations_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- file: a.py -->\n```python\nx = 1\n```\n\n- a list\n\n  <!-- continues -->\n  "
        "```python\n  y = x\n  ```\n\n<!-- slow -->\n\n```console\n$ echo a \\\n    b\na b\n$ "
        "true\n```\n\ntext\n\n    indented\n"
    )
    first, second, third, fourth = (
        attrs.evolve(block, page=ROOT / "page.md") for block in blocks(page)
    )
    assert (first.text, first.notes, str(first)) == ("x = 1\n", {"file": "a.py"}, "page.md:2")
    assert (second.text, second.notes) == ("x = 1\n\n\ny = x\n", {"continues": ""})
    assert third.notes == {"slow": ""}
    assert third.commands() == [("echo a \\\n    b\n", "a b\n"), ("true\n", "")]
    assert (fourth.language, fourth.notes) == ("", {})
