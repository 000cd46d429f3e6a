"""Parse an agent's answer: texts for the files of the stub. No answer raises an error."""

from __future__ import annotations

from collections.abc import Mapping

MAX_FILE_CHARACTERS = 512 * 1024
UNCHANGED = "the answer leaves the stub as it was"


def parse_answer(prediction: object, stub: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the files of an answer and "", or no files and one sentence about the problem.

    An answer is ``{"files": {PATH: TEXT}}``, or only a text if the stub has one file. Files that are not in the answer
    keep the stub's text.

    Args:
        prediction: the answer, any JSON value.
        stub: the texts of the exercise's files, by path.
    """
    if type(prediction) is str and len(stub) == 1:
        prediction = {"files": {next(iter(stub)): prediction}}
    given = prediction.get("files") if type(prediction) is dict else None
    if type(given) is not dict or not given:
        return {}, 'the answer is not {"files": {path: text}}'
    for path, text in given.items():
        if path not in stub:
            return {}, "the answer holds a file that the exercise does not ask for"
        if type(text) is not str or len(text) > MAX_FILE_CHARACTERS:
            return {}, f"a file of the answer is not a text of at most {MAX_FILE_CHARACTERS} characters"
        if any(0xD800 <= ord(character) <= 0xDFFF for character in text):
            return {}, "a file of the answer is not valid Unicode text"
    files = {**stub, **given}
    return ({}, UNCHANGED) if files == dict(stub) else (files, "")
