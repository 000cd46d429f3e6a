"""Write the messages between an agent and its model as Markdown, for people."""

import json
import os
from pathlib import Path

import settings


class History:
    """A file that is rotated at a size; the old files are ``.1``, ``.2`` and so on, newest
    first.
    """

    def __init__(self, path, limit=settings.HISTORY_BYTES, files=settings.HISTORY_FILES):
        """Write to a file.

        Args:
            path: the path of the file; None or empty means no file.
            limit: the size in bytes at which the file is rotated.
            files: the number of old files to keep.
        """
        self.path = Path(path) if path else None
        self._limit, self._files = limit, files

    def add(self, title, text):
        """Append a titled entry."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        entry = f"## {title}\n\n{text.rstrip()}\n\n".encode("utf-8", "backslashreplace")
        if self.path.exists() and self.path.stat().st_size + len(entry) > self._limit:
            self._rotate()
        with self.path.open("ab") as file:
            file.write(entry)

    def call(self, name, arguments):
        """Append a call of a tool."""
        self.add(f"Call of {name or '?'}", fenced(json.dumps(arguments, indent=1), "json"))

    def result(self, name, text):
        """Append what a tool returned."""
        self.add(f"Tool {name or '?'}", fenced(text))

    def _rotate(self):
        for number in range(self._files, 0, -1):
            older = self.path if number == 1 else self._numbered(number - 1)
            if older.exists():
                os.replace(older, self._numbered(number))

    def _numbered(self, number):
        return self.path.with_name(f"{self.path.name}.{number}")


def fenced(text, language=""):
    """Return a text as a code block whose fence is longer than every fence in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"
