"""Start Python processes of this library so that they import nothing from the directory in which they start.

``python -m`` and ``python -c`` put the current directory first on the path of imports, and so does each empty element
of ``PYTHONPATH``. That directory may be one that an agent wrote. Source: Python's documentation, "Command line and
environment", ``-P`` and ``PYTHONPATH``.

``PATH`` has the same fault for programs of all languages.

It is also a program that prints ``PYTHONPATH`` as :func:`safe_python_path` returns it, for scripts of jobs; so it
imports the standard library only.
"""

from __future__ import annotations

import os
import shutil
import sys

PATH = "PATH"
PYTHONPATH = "PYTHONPATH"


def python_args(*words: str) -> tuple[str, ...]:
    """Return the argv of a Python process; all Python processes that this library starts on the host begin so.

    Args:
        words: options and arguments, such as ``-m`` and a module. Programs that need no packages add ``-I`` and ``-S``.
    """
    return (_program(), "-P", *words)


def python_directory() -> str:
    """Return the directory of the Python program, which is absolute."""
    return os.path.dirname(_program())


def safe_python_path(value: str) -> str:
    """Return a ``PYTHONPATH`` without empty elements, which name the current directory; the others are absolute.

    ``export PYTHONPATH=$PYTHONPATH:/x`` makes an empty element if the variable was not set.

    Args:
        value: the variable's value; "" if it is not set.
    """
    return os.pathsep.join(os.path.abspath(element) for element in value.split(os.pathsep) if element)


def safe_program_path(value: str) -> str:
    """Return a ``PATH`` without empty and relative elements: programs of the current directory run because of them.

    Args:
        value: the variable's value.

    Returns:
        The absolute elements; the system's default path if there are none, because an empty ``PATH`` names the current
        directory too.
    """
    return os.pathsep.join(filter(os.path.isabs, value.split(os.pathsep))) or os.defpath


def _program() -> str:
    return os.path.abspath(sys.executable or shutil.which("python3") or "/usr/bin/python3")


if __name__ == "__main__":
    print(safe_python_path(os.environ.get(PYTHONPATH, "")))
