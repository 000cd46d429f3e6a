"""Answers that are files: what an agent changed, checked against the files that it was given."""

from __future__ import annotations

from collections.abc import Mapping

MAX_FILE_CHARACTERS = 512 * 1024


def parse_files(prediction: object, stub: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the files of an answer and "", or no files and one sentence about the problem.

    An answer is ``{"files": {PATH: TEXT}}``, or only a text if the stub has one file. Files that
    are not in the answer keep the stub's text.

    Args:
        prediction: the answer, any JSON value.
        stub: the texts of the task's files, by path.
    """
    if type(prediction) is str and len(stub) == 1:
        prediction = {"files": {next(iter(stub)): prediction}}
    given = prediction.get("files") if type(prediction) is dict else None
    if type(given) is not dict or not given:
        return {}, 'the answer is not {"files": {path: text}}'
    for path, text in given.items():
        if path not in stub:
            return {}, "the answer holds a file that the task does not ask for"
        if type(text) is not str or len(text) > MAX_FILE_CHARACTERS:
            return (
                {},
                f"a file of the answer is not a text of at most {MAX_FILE_CHARACTERS} characters",
            )
        if any(0xD800 <= ord(character) <= 0xDFFF for character in text):
            return {}, "a file of the answer is not valid Unicode text"
    return {**stub, **given}, ""
