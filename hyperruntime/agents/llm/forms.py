"""Choose the form of a task's answer from the shape of its inputs, the only information from a
domain.
"""

from pathlib import Path

import jsontext

_SHORT_CHARS = 200


class Form:
    """The default form: any JSON value."""

    def how(self, inputs):
        """Return the instructions about the form of the answer."""
        return (
            "End with the answer as one JSON value in a block opened by ```json and closed by "
            "```. If the task asks for one of several labels or words, it is that word as a "
            "JSON text, spelled as the task spells it."
        )

    def prepare(self, inputs, workdir):
        """Write the task's files into the working directory, if it has any."""

    def read(self, text, inputs, workdir):
        """Return whether a message holds an answer, and the answer.

        Args:
            text: the model's message.
            inputs: the inputs of the task.
            workdir: the working directory of the agent.
        """
        found, value = jsontext.answer(text)
        if (
            not found
            and text.strip()
            and "\n" not in text.strip()
            and len(text.strip()) <= _SHORT_CHARS
        ):
            return True, text.strip()  # one short line without quotes is a text
        return found, value


class Choice(Form):
    """One of the listed actions, for a turn in a world."""

    def how(self, inputs):
        """Return the instructions about the form of the answer."""
        return (
            "Answer with the one action to take now, as a JSON text, spelled as in `actions`. "
            "What comes of it is told in the next message."
        )

    def read(self, text, inputs, workdir):
        """Return the action: the message's JSON value, else the only action that the message
        names.
        """
        found, value = super().read(text, inputs, workdir)
        if found and value in inputs["actions"]:
            return True, value
        named = [
            action for action in inputs["actions"] if isinstance(action, str) and action in text
        ]
        longest = max(named, key=len, default="")
        if named and all(action in longest for action in named):
            return True, longest
        return found, value


class Files(Form):
    """The files of a program; their stubs are also in the working directory."""

    def how(self, inputs):
        """Return the instructions about the form of the answer."""
        names = ", ".join(f"`{name}`" for name in inputs["files"])
        return (
            f"Write these files: {names}. They lie as shown in your working directory: change them there and try them "
            "with tests of your own; the tests that decide are not there. When they are done, say so; the files of the "
            'working directory are your answer. Without tools, answer with {"files": {PATH: WHOLE TEXT}} as JSON.'
        )

    def prepare(self, inputs, workdir):
        """Write the stubs."""
        for name, text in inputs["files"].items():
            path = Path(workdir, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("utf-8"))

    def read(self, text, inputs, workdir):
        """Return the changed files of the working directory; files in the message replace them."""
        files = {
            name: content
            for name in inputs["files"]
            if (content := _read(Path(workdir, name))) is not None
        }
        changed = {
            name: content for name, content in files.items() if content != inputs["files"][name]
        }
        found, value = jsontext.answer(text)
        given = value.get("files") if found and isinstance(value, dict) else None
        if isinstance(given, dict):
            changed.update({name: text for name, text in given.items() if name in inputs["files"]})
        return bool(changed), {"files": changed}


def form_of(inputs):
    """Return the form of a task's answer."""
    actions, files = inputs.get("actions"), inputs.get("files")
    if isinstance(actions, list) and actions:
        return Choice()
    if isinstance(files, dict) and files and all(isinstance(text, str) for text in files.values()):
        return Files()
    return Form()


def _read(path):
    try:
        return path.read_bytes().decode("utf-8") if path.is_file() else None
    except (OSError, ValueError):
        return None
