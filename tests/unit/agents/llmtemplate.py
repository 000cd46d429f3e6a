"""Helpers for tests of the agent template ``llm``: import its modules as a container does, point
them at a scripted model, and copy them.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from hyperruntime.agents import copy_template
from hyperruntime.testing.model import ModelReply, ScriptedModel, scripted_model

AGENT = Path(__file__).resolve().parents[3] / "hyperruntime" / "agents" / "llm"
SHARED = AGENT.with_name("shared")
Modules = Any  # the modules are imported at run time
Start = Callable[..., ScriptedModel]


@contextmanager
def imported(folder: Path = AGENT, *, only: Sequence[str] = ()) -> Iterator[Any]:
    """Import the template's modules, or a few, from their own folder; unload them at the end."""
    folders = [folder, *([SHARED] if folder == AGENT else [])]
    names = sorted(path.stem for one in folders for path in one.glob("*.py"))
    known, kept = set(sys.modules), sys.dont_write_bytecode
    before = list(sys.path)
    sys.path[:0] = map(str, folders)
    sys.dont_write_bytecode = True
    try:
        yield SimpleNamespace(
            **{name: importlib.import_module(name) for name in only or (*names, "tools")}
        )
    finally:
        sys.path[:] = before
        sys.dont_write_bytecode = kept
        for name in set(sys.modules) - known:
            if name in names or name.partition(".")[0] == "tools":
                del sys.modules[name]


@pytest.fixture(scope="module")
def agent() -> Iterator[Modules]:
    """Yield the modules; their clients share connections, because each reads the certificates of
    this machine.
    """
    with imported() as modules, openai.DefaultHttpxClient() as http:
        client = partial(openai.OpenAI, http_client=http)
        modules.model.openai = SimpleNamespace(**{**vars(openai), "OpenAI": client})
        yield modules


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, agent: Modules) -> Iterator[Start]:
    """Return a function that starts a scripted model and points the agent at it."""
    for name in ("HYPERRUN_MODEL", "HYPERRUN_MODEL_TOOLS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(agent.settings, "REQUEST_RETRIES", 0)
    with ExitStack() as stack:

        def begin(*replies: ModelReply, script: Any = None) -> ScriptedModel:
            model = stack.enter_context(scripted_model(script or replies))
            monkeypatch.setenv("OPENAI_BASE_URL", model.url)
            monkeypatch.setenv("OPENAI_API_KEY", "token")
            return model

        yield begin


def last(request: Mapping[str, Any]) -> str:
    """Return the text of the last message of a request."""
    return str(request["messages"][-1]["content"])


def make_repository(folder: Path) -> Path:
    """Copy the template into a new git repository and commit it; return the folder."""
    copy_template("llm", folder)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "agent repository")
    return folder


def git(folder: Path, *arguments: str) -> str:
    """Run git; return its standard output."""
    command = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, check=True).stdout.decode()


def run_meta(
    repo: Path, outdir: Path, *arguments: str, url: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the meta agent's command in a repository with this model server."""
    command = [sys.executable, "-B", "run_meta_agent.py", "--git_dir", ".", "--base_commit", "HEAD"]
    command += ["--outdir", str(outdir), *arguments]
    base = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI", "HYPERRUN"))
    }
    known = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "token", **env}
    return subprocess.run(command, cwd=repo, capture_output=True, text=True, env={**base, **known})
