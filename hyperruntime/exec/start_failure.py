"""Messages of shells about programs that they could not execute, and the sentences for callers.

Pure.
"""

from __future__ import annotations

import os
import re
from functools import cached_property

from hyperruntime.exec.exec_script import ExecRequest

_MOST_BYTES = 8192  # of a message; names of programs may be long
_NO_PROGRAM = 127
_REASONS = {
    b"Permission denied": "permission denied",
    b"Is a directory": "it is a directory",
    b"Not a directory": "a part of its path is no directory",
    b"Exec format error": "it is not a program for this machine",
}


class StartFailure:
    """Recognises the message of a shell, or of env, that it could not execute the program of a
    request.

    The shell writes it where the program would write its errors, and names a line of our script in
    it. So the stream holds back what may be such a message until the end of the command is known.
    """

    def __init__(self, request: ExecRequest, lane_dir: str) -> None:
        """Prepare.

        Args:
            request: the command.
            lane_dir: directory of the lane in the container; its name is secret, and bash begins
                its messages with it.
        """
        self._request = request
        self._of_bash = os.fsencode(f"{lane_dir}/c: ")

    @cached_property
    def _forms(self) -> list[bytes]:
        """The beginnings of messages; made only if something is written, because most commands
        write no errors.
        """
        # of dash, of busybox
        forms = [b"hyperruntime: 1: exec: %s: ", b"hyperruntime: exec: line 1: %s: "]
        if self._request.through_env:  # of coreutils, of busybox
            forms += [
                b"env: '%s': ",
                b"env: \xe2\x80\x98%s\xe2\x80\x99: ",
                b"env: can't execute '%s': ",
            ]
        return [_numberless(form % self._request.args[0]) for form in forms]

    def may_be(self, said: bytes) -> bool:
        """Return whether the first bytes of a stream are such a message, or the beginning of
        one.
        """
        if len(said) > _MOST_BYTES:
            return False
        begun = [(said, self._of_bash), *((_numberless(said), form) for form in self._forms)]
        return any(text.startswith(form) or form.startswith(text) for text, form in begun)

    def is_told(self, said: bytes) -> bool:
        """Return whether bash or env says that it failed; bash drops its traps before it tries to
        execute a file.

        Args:
            said: the first bytes of the stream, of a command that ended with exit code 126 or 127
                and wrote nothing else.
        """
        if said.startswith(self._of_bash):
            return True
        name = re.escape(self._request.args[0])
        # also typographic quotes
        pattern = rb"env: [^\n]*?(?:['\"`]|\xe2\x80\x98)%s(?:['\"]|\xe2\x80\x99): " % name
        return bool(self._request.through_env) and re.match(pattern, said) is not None

    def sentence(self, exit_code: int, said: bytes) -> bytes:
        """Return the line that the caller gets instead of such a message.

        Args:
            exit_code: 127 if the program was not found, else 126.
            said: the message.
        """
        program = repr(os.fsdecode(self._request.args[0]))
        why = next(
            (why for word, why in _REASONS.items() if word in said), "the container refuses it"
        )
        text = f"the program {program} cannot be executed in the container: {why}"
        if exit_code == _NO_PROGRAM:
            text = f"the container has no program {program}; check its name and PATH"
            if b"/" in self._request.args[0]:
                text = (
                    f"the container has no program {program}, or not the interpreter that its "
                    "first line names"
                )
        return f"hyperruntime: {text}\n".encode(errors="replace")


def _numberless(text: bytes) -> bytes:
    """Return a text with one digit for each number: the number of a line may be any."""
    return re.sub(rb"[0-9]+", b"1", text)
