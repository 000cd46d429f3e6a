"""Write the software bill of materials of the project as CycloneDX JSON.

    python -m tests.release.sbom dist/hyperruntime.cdx.json

Its components are the packages that ``hyperruntime`` requires here, with those that they require,
as they are installed in this environment, and the vendored files. Extras are named after the file,
as in ``python -m tests.release.sbom FILE report tokens``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import attrs
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = "hyperruntime"
UPLOT = ROOT / "hyperruntime/report/page/assets/vendor/uplot"
_CLASSIFIER = "License :: OSI Approved :: "
# Texts of metadata that are no SPDX expression.
_SPDX = {
    "apache software license": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache": "Apache-2.0",
    "bsd license": "BSD-3-Clause",
    "bsd": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "gnu library or lesser general public license (lgpl)": "LGPL-2.1-or-later",
    "gnu lesser general public license v2 (lgplv2)": "LGPL-2.1-or-later",
    "gnu lesser general public license v2 or later (lgplv2+)": "LGPL-2.1-or-later",
    "historical permission notice and disclaimer (hpnd)": "HPND",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "psf": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
}


@attrs.frozen(kw_only=True)
class Part:
    """One component.

    Attributes:
        name: its name in its registry.
        version: its version.
        licence: an SPDX expression, or the text of its metadata if that is none, or "".
        kind: type of its package URL.
        requires: names of the other components that it requires.
    """

    name: str
    version: str
    licence: str
    kind: str = "pypi"
    requires: tuple[str, ...] = ()

    @property
    def purl(self) -> PackageURL:
        """Return its package URL."""
        return PackageURL(type=self.kind, name=self.name, version=self.version)


def licence_of(package: Distribution) -> str:
    """Return the licence of an installed package: an SPDX expression if its metadata says
    enough.
    """
    metadata = package.metadata
    if expressions := metadata.get_all("License-Expression"):
        return str(expressions[0])
    named = [
        name.removeprefix(_CLASSIFIER)
        for name in metadata.get_all("Classifier") or ()
        if _CLASSIFIER in name
    ]
    texts = [*named, *(str(text).partition("\n")[0] for text in metadata.get_all("License") or ())]
    known = [_SPDX[text.lower()] for text in texts if text.lower() in _SPDX]
    return " OR ".join(dict.fromkeys(known)) if known else next(iter(texts), "")


def required(name: str, extras: Sequence[str] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the requirements of an installed package that apply here: name, and extras of it."""
    for line in distribution(name).requires or ():
        requirement = Requirement(line)
        # the rest is that of this Python
        environments = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(
            requirement.marker.evaluate(one) for one in environments
        ):
            yield canonicalize_name(requirement.name), tuple(requirement.extras)


def installed_parts(extras: Sequence[str] = ()) -> tuple[dict[str, Part], list[str]]:
    """Return all packages that the project requires here, by name, and the names of those that are
    not installed.

    Args:
        extras: extras of the project that count too.
    """
    parts: dict[str, Part] = {}
    missing: list[str] = []
    waiting, seen = [(PROJECT, tuple(extras))], set[tuple[str, tuple[str, ...]]]()
    while waiting:
        entry = waiting.pop()
        name, wanted = entry
        if entry in seen:
            continue
        seen.add(entry)
        try:
            package = distribution(name)
        except PackageNotFoundError:
            missing.append(name)
            continue
        below = list(required(name, wanted))
        waiting += below
        older = parts[name].requires if name in parts else ()
        needs = tuple(sorted({*older, *(other for other, _ in below)}))
        parts[name] = Part(
            name=name, version=package.version, licence=licence_of(package), requires=needs
        )
    del parts[PROJECT]
    return parts, sorted(missing)


def vendored_parts() -> list[Part]:
    """Return the components whose files are in the repository."""
    head = (UPLOT / "uPlot.iife.min.js").read_text()[:200]
    version = re.search(r"\(v(\d+\.\d+\.\d+)\)", head)
    assert version, "uPlot's file begins with its version"
    first = next(
        line.strip() for line in (UPLOT / "LICENSE").read_text().splitlines() if line.strip()
    )
    licence = {"The MIT License (MIT)": "MIT", "MIT License": "MIT"}[first]
    return [Part(name="uplot", version=version[1], licence=licence, kind="npm")]


def bill_of_materials(extras: Sequence[str] = ()) -> str:
    """Return the bill as text of CycloneDX JSON 1.6.

    Args:
        extras: extras of the project that count too.

    Raises:
        LookupError: a required package is not installed.
    """
    parts, missing = installed_parts(extras)
    if missing:
        raise LookupError(
            f"not installed: {', '.join(missing)}; install them, or name fewer extras"
        )
    ours = distribution(PROJECT)
    licences = LicenseFactory()
    root = Part(name=PROJECT, version=ours.version, licence="Apache-2.0")
    made = {
        part.name: Component(
            name=part.name,
            version=part.version,
            type=ComponentType.APPLICATION if part is root else ComponentType.LIBRARY,
            purl=part.purl,
            bom_ref=str(part.purl),
            licenses=[licences.make_from_string(part.licence)] if part.licence else (),
        )
        for part in (root, *parts.values(), *vendored_parts())
    }
    bom = Bom(components=[made[name] for name in made if name != PROJECT])
    bom.metadata.component = made[PROJECT]
    direct = [*dict(required(PROJECT, extras)), *(part.name for part in vendored_parts())]
    bom.register_dependency(made[PROJECT], [made[name] for name in sorted(set(direct))])
    for part in parts.values():
        bom.register_dependency(made[part.name], [made[name] for name in part.requires])
    return JsonV1Dot6(bom).output_as_string(indent=2)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    Path(sys.argv[1]).write_text(bill_of_materials(sys.argv[2:]) + "\n")
