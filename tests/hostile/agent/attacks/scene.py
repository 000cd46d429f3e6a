"""Where an attack happens, and what it saw: each attempt is told to the host in the chat history file."""

import json


class Scene:
    def __init__(self, role, report_file, facts):
        self.role, self.facts = role, facts
        self.report = {}
        self._report_file = report_file

    def attempt(self, name, function, *args, **options):
        """Try something; it has worked if it returns anything."""
        try:
            result = function(*args, **options)
        except BaseException as error:
            self.report[name] = f"failed: {type(error).__name__}: {error}"
        else:
            self.report[name] = f"WORKED: {result!r}" if result else "failed: nothing came of it"
        self.save()

    def note(self, name, value):
        self.report[name] = value
        self.save()

    def save(self):
        with open(self._report_file, "w") as file:
            json.dump(self.report, file)
