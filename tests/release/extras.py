"""What each extra of setup.cfg is for: modules that its environment alone must be able to import.

    python -I tests/release/extras.py EXTRA

imports them, and first checks that our package and our commands import nothing of any extra.
`scripts/extras` runs it in a fresh environment for each extra, so this module imports nothing else.
"""

from __future__ import annotations

import importlib
import sys

# Extra: modules of others that it brings, then ours that need them.
MODULES = {
    "report": ("matplotlib", "hyperruntime.report.figures"),
    "study": ("scipy", "hyperruntime.report.study.significance"),
    "trackio": ("trackio", "hyperruntime.loop.loggers.wandb_api"),
    "wandb": ("wandb", "hyperruntime.loop.loggers.wandb_api"),
    "tokens": ("tokenizers", "hyperruntime.rollout.models.tokenizer"),
    "hpc": ("parsl", "hyperruntime.cluster.launchers.parsl"),
    "ray": ("ray", "hyperruntime.cluster.launchers.ray"),
    "inspect-ai": ("inspect_ai", "hyperruntime_inspect_ai.sandbox"),
    "mini-swe-agent": ("minisweagent", "hyperruntime_mini_swe_agent"),
    "deepagents": ("deepagents", "langchain_core", "hyperruntime_deepagents"),
    "openai-agents": ("agents", "hyperruntime_openai_agents"),
    "smolagents": ("smolagents", "hyperruntime_smolagents"),
    "swe-rex": ("swerex", "hyperruntime_swe_rex"),
    "mcp": ("mcp", "hyperruntime_mcp"),
    "pytest": ("pytest", "hyperruntime_pytest.plugin"),
    "babyai": ("minigrid", "hyperdomain_babyai"),
    "nle": ("nle", "gymnasium", "hyperdomain_nethack"),
    "minihack": ("minihack", "nle", "gymnasium", "hyperdomain_nethack"),
    "swe": ("pyarrow", "hyperenvironment_swe"),
    "terminal": ("pytest", "hyperenvironment_terminal"),
    "train": ("torch", "datasets", "hypertrainer_grpo.trainer"),
    "docs": ("sphinx", "myst_parser", "furo", "sphinx_click", "sphinx_copybutton", "sphinx_design"),
    "dev": (
        "build",
        "hypothesis",
        "importlinter",
        "mypy",
        "pyright",
        "pytest",
        "ruff",
        "selenium",
        "xdist",
    ),
    "release": (
        "check_jsonschema",
        "cyclonedx_py",
        "packaging",
        "piplicenses",
        "pipx",
        "trove_classifiers",
    ),
}
# Domains that an extra brings, each with a class, a level, and a walk that ends in the progress.
PLAYED = {
    "babyai": (
        "hyperdomain_babyai:BabyAI",
        "GoToLocal-v0",
        ("go forward",) * 2 + ("turn right",),
        1,
    ),
    "nle": ("hyperdomain_nethack:NLE", None, ("search", "inventory", "esc"), 0),
    "minihack": ("hyperdomain_nethack:MiniHack", "Room-5x5-v0", ("southeast",) * 4, 1),
}
# Only resolved, not installed: torch and what it needs take gigabytes.
RESOLVED_ONLY = ("train",)


def foreign() -> set[str]:
    """Return the modules of others that extras bring."""
    return {name for names in MODULES.values() for name in names if not name.startswith("hyper")}


def play(reference: str, level: str | None, walk: tuple[str, ...], progress: float) -> None:
    """Play a known walk on the first world of a domain.

    Raises:
        AssertionError: an action is unknown, or the progress is another one.
    """
    module, _, name = reference.partition(":")
    domain = getattr(importlib.import_module(module), name)(level)
    (task, *_) = domain.tasks("train")
    episode = domain.dialogue(task)
    told = episode.begin()
    for action in walk:
        assert told is not None, f"{reference} ended before {action}"
        assert action in told["actions"], f"{reference} does not know {action}: {told}"
        told = episode.reply(action)
    score = domain.score(task, episode.outcome(None))
    episode.close()
    assert score.value == progress, f"{reference}: {score}"


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in MODULES:
        print(f"usage: {sys.argv[0]} {'|'.join(MODULES)}", file=sys.stderr)
        return 2
    for module in ("hyperruntime", "hyperruntime.cli.app"):
        importlib.import_module(module)
        if loaded := sorted(foreign() & set(sys.modules)):
            print(f"importing {module} also imports {', '.join(loaded)}", file=sys.stderr)
            return 1
    for module in MODULES[sys.argv[1]]:
        importlib.import_module(module)
    if sys.argv[1] in PLAYED:
        play(*PLAYED[sys.argv[1]])
    return 0


if __name__ == "__main__":
    sys.exit(main())
