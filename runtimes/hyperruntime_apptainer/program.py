"""The names of Apptainer's program and of its variables on this machine.

Sites also install it, or SingularityCE, as ``singularity``. Both read variables with the prefix
``SINGULARITY_``; Apptainer prefers its own. Sources: "Singularity Compatibility" of Apptainer's
user guide; the appendix of SingularityCE's user guide.
"""

from __future__ import annotations

from hyperruntime.host.process import find_program

PROGRAMS = ("apptainer", "singularity")


def program() -> str:
    """Return the first name on PATH; ``apptainer`` if there is none."""
    return next((name for name in PROGRAMS if find_program(name)), PROGRAMS[0])


def variables(**values: str) -> dict[str, str]:
    """Return variables of the program, by their names without its prefix."""
    prefix = program().upper()
    return {f"{prefix}_{name}": value for name, value in values.items()}
