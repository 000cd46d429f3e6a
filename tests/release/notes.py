"""Print the part of CHANGELOG.md about one version, as the notes of its release.

python -m tests.release.notes 0.2.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def notes(changelog: str, version: str) -> str:
    """Return the section of a version.

    Raises:
        LookupError: the changelog has no section for it, or an empty one.
    """
    found = re.search(
        rf"^## \[{re.escape(version)}\].*?\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if found is None or not found[1].strip():
        raise LookupError(
            f"CHANGELOG.md has no entries under ## [{version}]; rename [Unreleased] with "
            "today's date"
        )
    return found[1].strip()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        print(notes((ROOT / "CHANGELOG.md").read_text(), sys.argv[1]))
    except LookupError as error:
        sys.exit(f"notes: {error}")
