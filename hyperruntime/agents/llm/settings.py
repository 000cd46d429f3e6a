"""All limits, and the choice of the model."""

import os
import tomllib
from pathlib import Path

META_TOOL_CALLS = 60
TASK_TOOL_CALLS = 25
CALLS_LEFT_TOLD = 5  # from this number on, the model is told how many calls are left
REPAIRS = 2  # how often the model may repair an agent that cannot be imported

MAX_TOKENS = 8192  # per reply
REQUEST_TIMEOUT_S = 600.0
REQUEST_RETRIES = 4
CONVERSATION_CHARS = 400_000  # above this, older tool results are left out

COMMAND_TIMEOUT_S = 120.0
COMMAND_TIMEOUT_MOST_S = 1800.0
OUTPUT_BYTES = 24_000  # per tool call: half from the beginning, half from the end
FILE_BYTES = 8 * 1024 * 1024  # the editor opens no larger file

HISTORY_BYTES = 10 * 1024 * 1024
HISTORY_FILES = 5

_CONTRACT = Path(__file__).resolve().parent / "hyperrun.toml"
_DEFAULT_MODEL = "gpt-4o"


def model_name(given=None):
    """Return the model's name: the given one, else HYPERRUN_MODEL, else the name in
    hyperrun.toml.
    """
    return given or os.environ.get("HYPERRUN_MODEL") or _configured().get("name") or _DEFAULT_MODEL


def tool_mode():
    """Return how tools are called: ``native``, ``text`` or ``auto``."""
    mode = os.environ.get("HYPERRUN_MODEL_TOOLS") or _configured().get("tools")
    return mode if mode in ("native", "text") else "auto"


def _configured():
    try:
        table = tomllib.loads(_CONTRACT.read_text(encoding="utf-8")).get("model")
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}
