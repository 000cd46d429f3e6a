"""The scene of an attack; the chat history file tells the host the result of each attempt."""

import json


class Scene:
    def __init__(self, role, report_file, facts):
        self.role, self.facts = role, facts
        self.report = {}
        self._report_file = report_file

    def attempt(self, name, function, *args, **options):
        """Run an attempt and record its result; it worked if it returns a true value."""
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
