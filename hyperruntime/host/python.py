"""Start Python processes of this library so that they import nothing from the directory in which
they start.

``python -m`` and ``python -c`` put the current directory first on the path of imports, and so does
each empty element of ``PYTHONPATH``. That directory may be one that an agent wrote. Source:
Python's documentation, "Command line and environment", ``-P`` and ``PYTHONPATH``.

``PATH`` has the same fault for programs of all languages, and ``LD_LIBRARY_PATH`` for the libraries
that they load.

It is also a program that prints ``PYTHONPATH`` as :func:`safe_python_path` returns it, for scripts
of jobs; so it imports the standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import MutableMapping
from contextlib import suppress

PATH = "PATH"
PYTHONPATH = "PYTHONPATH"
LIBRARY_PATH = "LD_LIBRARY_PATH"
_CLONE_FS = 0x200  # of unshare(2)


def python_args(*words: str) -> tuple[str, ...]:
    """Return the argv of a Python process; all Python processes that this library starts on the
    host begin so.

    Args:
        words: options and arguments, such as ``-m`` and a module. Programs that need no packages
            add ``-I`` and ``-S``.
    """
    return (_program(), "-P", *words)


def python_directory() -> str:
    """Return the directory of the Python program, which is absolute."""
    return os.path.dirname(_program())


def safe_python_path(value: str) -> str:
    """Return a ``PYTHONPATH`` without empty elements, which name the current directory; the others
    are absolute.

    ``export PYTHONPATH=$PYTHONPATH:/x`` makes an empty element if the variable was not set.

    Args:
        value: the variable's value; "" if it is not set.
    """
    return os.pathsep.join(
        os.path.abspath(element) for element in value.split(os.pathsep) if element
    )


def safe_program_path(value: str) -> str:
    """Return a ``PATH`` without empty and relative elements: programs of the current directory run
    because of them.

    Args:
        value: the variable's value.

    Returns:
        The absolute elements; the system's default path if there are none, because an empty
        ``PATH`` names the current directory too.
    """
    return os.pathsep.join(filter(os.path.isabs, value.split(os.pathsep))) or os.defpath


def safe_library_path(value: str) -> str:
    """Return an ``LD_LIBRARY_PATH`` without empty and relative elements, which name the current
    directory.

    ``export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/x`` makes an empty element if the variable was not
    set. Source: ld.so(8).

    Args:
        value: the variable's value.
    """
    return ":".join(filter(os.path.isabs, re.split("[:;]", value)))


_SAFE = {PATH: safe_program_path, PYTHONPATH: safe_python_path, LIBRARY_PATH: safe_library_path}


def make_safe(environ: MutableMapping[str, str]) -> None:
    """Change the variables with which programs run, import or load what is in the current
    directory.
    """
    for name, safe in _SAFE.items():
        if (value := environ.get(name)) is not None and (better := safe(value)) != value:
            environ[name] = better


def given_environment() -> dict[str, str]:
    """Return the environment of this process as it was before :func:`make_safe`; as the kernel
    still has it.
    """
    with suppress(OSError), open("/proc/self/environ", "rb") as file:
        given = dict(os.fsdecode(line).partition("=")[::2] for line in file.read().split(b"\0"))
        before = {name: given[name] for name in _SAFE if name in given}
        changed = {
            name: value
            for name, value in before.items()
            if os.environ.get(name) == _SAFE[name](value)
        }
        return {**os.environ, **changed}
    return dict(os.environ)


def find_program(name: str) -> str | None:
    """Return the absolute path of a program on ``PATH``, or None; none of the current directory is
    found.
    """
    return shutil.which(name, path=safe_program_path(os.environ.get(PATH, os.defpath)))


def import_elsewhere(name: str) -> None:
    """Import a module that reads a file of the current directory when it is imported, with ``/`` as
    that directory.

    It does so in a thread with a directory of its own. Where the kernel or a filter of system calls
    denies that, the module is imported as usual. Source: unshare(2), CLONE_FS, which needs no
    capability.

    Args:
        name: the module.

    Raises:
        ImportError: as the import.
    """
    import ctypes
    import importlib
    import threading

    errors: list[BaseException] = []

    def work() -> None:
        with suppress(OSError, AttributeError):
            if ctypes.CDLL(None).unshare(_CLONE_FS) == 0:
                os.chdir("/")
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asked
            errors.append(error)

    if name not in sys.modules:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    for error in errors:
        raise error


def _program() -> str:
    return os.path.abspath(sys.executable or find_program("python3") or "/usr/bin/python3")


if __name__ == "__main__":
    print(safe_python_path(os.environ.get(PYTHONPATH, "")))
