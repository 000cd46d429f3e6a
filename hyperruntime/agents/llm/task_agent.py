"""The task agent: asks the model for the answer to a task; tools work in a private directory."""

import shutil
import tempfile
import weakref

import prompts
import settings
from conversation import Conversation
from forms import form_of
from model import Model
from tools import Desk


class TaskAgent:
    """Answers one task; all turns of a task are one conversation. Garbage collection removes its
    directory.
    """

    def __init__(self, model=None, chat_history_file=None):
        """Create an agent, without a request.

        Args:
            model: the name of the model; None means the configured one.
            chat_history_file: the path of the chat history; None means none.
        """
        self.model = settings.model_name(model)
        self.chat_history_file = chat_history_file
        self._conversation = None
        self._workdir = None

    def forward(self, inputs):
        """Return ``(prediction, history)``: a JSON value (None without an answer) and the
        messages.
        """
        inputs = inputs if isinstance(inputs, dict) else {"task": inputs}
        form = form_of(inputs)
        if self._conversation is None:
            self._begin(form, inputs)
        conversation = self._conversation
        conversation.calls_left = settings.TASK_TOOL_CALLS
        text = conversation.say(prompts.task(inputs, form.how(inputs)))
        found, value = form.read(text, inputs, self._workdir)
        if not found:
            text = conversation.say(prompts.no_json())
            found, value = form.read(text, inputs, self._workdir)
        return (value if found else text.strip() or None), conversation.messages

    def _begin(self, form, inputs):
        """Set up the working directory and the conversation."""
        self._workdir = tempfile.mkdtemp(prefix="task-")
        form.prepare(inputs, self._workdir)
        desk = Desk(self._workdir)
        weakref.finalize(self, _tidy, desk, self._workdir)
        self._conversation = Conversation(
            Model(self.model),
            desk,
            prompts.TASK_SYSTEM,
            settings.TASK_TOOL_CALLS,
            self.chat_history_file,
        )


def _tidy(desk, workdir):
    desk.close()
    shutil.rmtree(workdir, ignore_errors=True)
