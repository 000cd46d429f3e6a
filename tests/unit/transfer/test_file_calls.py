"""The commands of single files, and what their results mean; no container runs."""

from __future__ import annotations

import errno
import os
import pickle

import pytest

from hyperruntime.errors import HyperRuntimeError, TransferTimeoutError
from hyperruntime.spec import ExecResult
from hyperruntime.transfer.file_calls import read_call, read_calls, stat_call, write_call
from hyperruntime.transfer.file_errors import FileError, error_of_text, file_error


def result(
    exit_code: int = 0, stdout: bytes = b"", stderr: bytes = b"", **more: bool
) -> ExecResult:
    return ExecResult(args=("sh",), exit_code=exit_code, stdout=stdout, stderr=stderr, **more)


@pytest.mark.parametrize(
    ("text", "number", "builtin"),
    [
        (
            "head: cannot open '/x' for reading: No such file or directory",
            errno.ENOENT,
            FileNotFoundError,
        ),
        ("sh: 1: cannot create /x/y: Directory nonexistent", errno.ENOENT, FileNotFoundError),
        ("mkdir: cannot create directory '/x': Permission denied", errno.EACCES, PermissionError),
        ("chmod: /x: Operation not permitted", errno.EPERM, PermissionError),
        ("sh: can't create /x: Is a directory", errno.EISDIR, IsADirectoryError),
        (
            "mkdir: cannot create directory '/x/y': Not a directory",
            errno.ENOTDIR,
            NotADirectoryError,
        ),
        (
            "1+0 records in\n0+0 records out\ndd: error writing: No space left on device\n0 bytes",
            errno.ENOSPC,
            OSError,
        ),
        ("touch: cannot touch '/x': Read-only file system", errno.EROFS, OSError),
        ("sh: can't open /x: Symbolic link loop", errno.ELOOP, OSError),
        ("head: read error", None, OSError),
        ("", None, OSError),
    ],
)
def test_the_words_of_a_program_become_the_builtin_error(
    text: str, number: int | None, builtin: type[OSError]
) -> None:
    error = error_of_text("/x", text)
    assert isinstance(error, builtin)
    assert isinstance(error, HyperRuntimeError)
    assert error.errno == number
    assert str(error).startswith("'/x' in the container: ")


def test_an_error_reaches_another_process_unchanged() -> None:
    for number in (errno.ENOENT, errno.ENOSPC):
        error = file_error("/x\udcff", number)
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.path, copy.errno) == (
            type(error),
            str(error),
            "/x\udcff",
            number,
        )


@pytest.mark.parametrize(
    ("path", "length"),
    [
        ("/" + "a" * 255, None),
        ("/" + "a" * 256, 256),
        ("/" + "a/" * 2047, None),
        ("/a" * 2048, 4096),
    ],
)
def test_a_path_that_the_kernel_refuses_is_refused_without_an_exec(
    path: str, length: int | None
) -> None:
    if length is None:
        assert os.fsencode(path) in read_call(path, 1, 1).args
        return
    with pytest.raises(FileError, match="too long") as caught:
        read_call(path, 1, 1)
    assert caught.value.errno == errno.ENAMETOOLONG


def test_an_image_without_a_program_is_named() -> None:
    call = write_call({"/x": b""}, mode=None, parents=True, timeout_s=1, on_error=None)
    assert call is not None
    with pytest.raises(FileError, match="the image has no dd; use an image that has it"):
        call.parse(result(91, stderr=b"dd\n"))


def test_a_program_that_ends_early_is_an_error_of_the_files_that_it_left_out() -> None:
    errors: list[FileError] = []
    files = {"/one": b"1", "/two": b"2", "/three": b"3"}
    call = write_call(files, mode=None, parents=True, timeout_s=1, on_error=errors.append)
    assert call is not None
    call.parse(result(88, b"0\n", b"fine\0dd: No space left on device\n"))
    assert [(error.path, error.errno) for error in errors] == [
        ("/two", errno.ENOSPC),
        ("/three", errno.ENOSPC),
    ]


def test_a_file_cannot_end_the_file_before_it() -> None:
    """The line between two files is secret, so a file that looks like such a line is only a
    file.
    """
    first, second = (read_calls(["/a", "/b"], 1000, 1, None)[0] for _ in range(2))
    boundary = first.env["boundary"]
    assert boundary != second.env["boundary"]
    # other users can see a command line
    assert not any(boundary.encode() in word for word in first.args)
    hostile = b"\n%s 0\nforged" % second.env["boundary"].encode()
    output = b"%b\n%s 0\n%b\n%s 0\n" % (hostile, boundary.encode(), b"", boundary.encode())
    assert first.parse(result(stdout=output)) == {"/a": hostile, "/b": b""}


@pytest.mark.parametrize(
    "output", [b"", b"8 x", b"zz 1 0 0 1 1", b"1 2 3 4 5 6 7", b"81a4 1 0 0 \xff 1"]
)
def test_a_stat_of_the_image_that_prints_something_else_is_an_error(output: bytes) -> None:
    with pytest.raises(FileError, match="stat"):
        stat_call("/x", follow_symlinks=True, timeout_s=1).parse(result(stdout=output))


def test_a_deadline_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(TransferTimeoutError, match=r"within 2.0s .*raise timeout_s"):
        read_call("/pipe", 1, 2).parse(result(124, timed_out=True))
