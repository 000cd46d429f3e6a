"""Read a text file that somebody else wrote."""

from __future__ import annotations

from pathlib import Path

from hyperruntime.errors import SpecError
from hyperruntime.storage.run_files import read_run_file


def read_utf8(path: Path, field: str, *, may_be_link: bool = True) -> str:
    """Return the text of a file, with its line ends as they are, and without a byte order mark at
    its start.

    Args:
        path: the file.
        field: what the file is, for the error message.
        may_be_link: whether the user named the file; else it may not be a link, which would lead to
            any file.

    Raises:
        SpecError: the file cannot be read, or is not UTF-8; the message names the file.
    """
    try:
        data = path.read_bytes() if may_be_link else read_run_file(path, below=path.parent)
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(field, str(path), f"text in UTF-8; its byte {error.start} is not") from None
    except OSError as error:
        raise SpecError(field, str(path), f"a readable file: {error.strerror or error}") from None
