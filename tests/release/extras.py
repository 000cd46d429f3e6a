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
# Only resolved, not installed: torch and what it needs take gigabytes.
RESOLVED_ONLY = ("train",)


def foreign() -> set[str]:
    """Return the modules of others that extras bring."""
    return {name for names in MODULES.values() for name in names if not name.startswith("hyper")}


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
    return 0


if __name__ == "__main__":
    sys.exit(main())
