"""Which licences of dependencies the project may use.

    python -m tests.release.licences EXTRA FOLDER

checks what an extra brings, as it is installed in a folder of packages: ``scripts/integrations``
calls it for the environment of each framework. The exit code is 1 if a package is missing or its
licence is not allowed.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from license_expression import ExpressionError, get_spdx_licensing

from tests.release.sbom import Part, installed_parts

# Licences that ask of users only to keep a notice.
ALLOWED = {
    *(
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "HPND",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
    ),
    *("PSF-2.0", "Python-2.0", "Unlicense", "Zlib", "CNRI-Python", "BSL-1.0"),
    "Apache-2.0 WITH LLVM-exception",
}
# Licences that also ask to publish changes of the package itself. These packages are used as they
# are, and not shipped.
UNCHANGED = {"MPL-2.0", "LGPL-2.1-or-later", "LGPL-2.1-only", "LGPL-3.0-only", "LGPL-3.0-or-later"}
# Packages whose metadata does not say it; read in their files.
READ = {"pygame-ce": "LGPL-2.1-or-later", "farama-notifications": "MIT", "smolagents": "Apache-2.0"}
READ |= {
    "agent-client-protocol": "Apache-2.0",
    "torchcodec": "BSD-3-Clause",
    "mathruler": "Apache-2.0",
}
# Named on the page of the integration. SWE-ReX itself requires the one; the CUDA builds of torch,
# which verl requires, the others.
# names, and beginnings of names
OF_ONE_EXTRA = {"swe-rex": ("bashlex",), "verl": ("nvidia-", "cuda-")}


@cache
def spdx() -> Any:
    """Return the parser of expressions, which takes a second to make."""
    return get_spdx_licensing()


def is_allowed(expression: str, allowed: set[str]) -> bool:
    """Return whether an SPDX expression can be met with allowed licences: all sides of AND, one
    side of OR.
    """
    licensing = spdx()
    try:
        tree = licensing.parse(expression, validate=True)
    except ExpressionError:
        return False

    def is_met(node: Any) -> bool:
        if isinstance(node, licensing.AND):
            return all(map(is_met, node.args))
        return (
            any(map(is_met, node.args)) if isinstance(node, licensing.OR) else str(node) in allowed
        )

    return tree is not None and is_met(tree)


def refused(parts: dict[str, Part]) -> dict[str, str]:
    """Return the licences of packages that are not allowed, by the names of the packages."""
    found = {part.name: READ.get(part.name, part.licence) for part in parts.values()}
    return {
        name: licence
        for name, licence in found.items()
        if not is_allowed(licence, ALLOWED | UNCHANGED)
    }


def main(extra: str, folder: str) -> int:
    sys.path[:] = [folder, *(path for path in sys.path if "site-packages" not in path)]
    parts, missing = installed_parts((extra,))
    found, known = refused(parts), OF_ONE_EXTRA.get(extra, ())
    wrong = {name: licence for name, licence in found.items() if not name.startswith(known)}
    excepted = (
        f", excepted: {sorted(found.keys() - wrong.keys())}" if len(found) > len(wrong) else ""
    )
    print(
        f"licences of {extra}: {len(parts)} packages, not installed: {missing}, not allowed: "
        f"{wrong}{excepted}"
    )
    return 1 if missing or wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
