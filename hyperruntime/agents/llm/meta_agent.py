"""The meta agent: asks the model to improve the repository, which includes this file."""

import subprocess
import sys
from pathlib import Path

import past
import prompts
import settings
from conversation import Conversation
from model import Model, ModelError
from tools import Desk

LOADS = "import task_agent, meta_agent; task_agent.TaskAgent, meta_agent.MetaAgent"
STOPS = (ModelError,)  # a used-up budget is one
_LISTED = 150
_ERROR_CHARS = 3000
_LOAD_S = 120


class MetaAgent:
    """Edits an agent repository with the help of its model."""

    def __init__(self, model=None, chat_history_file=None):
        """Create an agent, without a request.

        Args:
            model: the name of the model; None means the configured one.
            chat_history_file: the path of the chat history; None means none.
        """
        self.model = settings.model_name(model)
        self.chat_history_file = chat_history_file

    def forward(self, repo_path, eval_path=None, iterations_left=None):
        """Let the model work on the repository and return its last message.

        If the agent cannot be imported afterwards, the model gets the error and may repair it.

        Args:
            repo_path: the repository to change.
            eval_path: the folder of evaluations of earlier generations; None means none.
            iterations_left: how many generations follow; None means unknown.
        """
        repo = Path(repo_path).resolve()
        summary = past.summary(eval_path, repo)
        with Desk(repo) as desk:
            conversation = Conversation(
                Model(self.model),
                desk,
                prompts.META_SYSTEM,
                settings.META_TOOL_CALLS,
                self.chat_history_file,
            )
            said = conversation.say(
                prompts.meta(repo, _files(repo), summary, eval_path, iterations_left)
            )
            for _ in range(settings.REPAIRS):
                error = load_error(repo)
                if not error:
                    break
                said = conversation.say(prompts.broken(error))
        return said


def load_error(repo):
    """Return why the agent in a repository cannot be imported, or ''."""
    command = [sys.executable, "-B", "-c", LOADS]
    try:
        done = subprocess.run(command, cwd=repo, capture_output=True, timeout=_LOAD_S, check=False)
    except subprocess.TimeoutExpired:
        return f"importing it takes more than {_LOAD_S} s"
    return (
        ""
        if done.returncode == 0
        else done.stderr.decode("utf-8", "replace")[-_ERROR_CHARS:] or "no message"
    )


def _files(repo):
    """Return the files of a repository as a list, with the first line of each Python file's
    docstring.
    """
    names = sorted(
        str(path.relative_to(repo))
        for path in repo.rglob("*")
        if path.is_file() and not {".git", "__pycache__"} & set(path.relative_to(repo).parts)
    )
    more = [f"- and {len(names) - _LISTED} more"] if len(names) > _LISTED else []
    return "\n".join(
        [*(f"- `{name}`{_first_line(repo / name)}" for name in names[:_LISTED]), *more]
    )


def _first_line(path):
    if path.suffix != ".py":
        return ""
    with path.open(encoding="utf-8", errors="replace") as file:
        line = file.readline().strip()
    return f": {line.strip(chr(34))}" if line.startswith('"""') else ""
