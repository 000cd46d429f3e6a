"""Write the address at which the project is published into the files of this checkout; a release
does it, no commit.

    python -m tests.release.set_home https://forge.example/owner/hyperruntime

A checkout does not know where it is published, so the repository names no address. Changed are
``project_urls`` in ``setup.cfg``, ``CITATION.cff``, and the links of README to files, which the
page of a package index cannot follow.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_URL = re.compile(r"https://[^\s/?#@]+(/[^\s/?#]+)+")
_PICTURE = re.compile(r"\.(png|svg)$")
_LINK = re.compile(r"(\]\(|(?:src|href)=\")(?!\w+:|#|/)([^)\s\"]+)")


def set_home(root: Path, url: str) -> None:
    """Change the files below ``root``.

    Args:
        root: a checkout.
        url: the address of the repository, on a forge with the paths of GitHub.

    Raises:
        ValueError: the address is not one of https, or the files have one already.
    """
    if not _URL.fullmatch(url):
        raise ValueError(f"{url!r} is not the https address of a repository")
    config, citation, readme = root / "setup.cfg", root / "CITATION.cff", root / "README.md"
    text = config.read_text()
    if re.search(r"^project_urls\s*=", text, re.MULTILINE):
        raise ValueError(f"{config} has project_urls already; start from a fresh checkout")
    version = re.search(r"^version = (.+)$", text, re.MULTILINE)
    assert version
    files = f"{url}/blob/v{version[1]}"
    urls = {
        "Source": url,
        "Documentation": f"{url}/tree/v{version[1]}/docs",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{url}/issues",
        "Security": f"{files}/SECURITY.md",
    }
    lines = "".join(f"    {name} = {target}\n" for name, target in urls.items())
    config.write_text(text.replace("\nlicense = ", f"\nproject_urls =\n{lines}license = ", 1))
    citation.write_text(f"{citation.read_text()}repository-code: {url}\n")
    pictures = f"{url}/raw/v{version[1]}"  # the page of a file is not the file
    readme.write_text(
        _LINK.sub(
            lambda found: (
                f"{found[1]}{pictures if _PICTURE.search(found[2]) else files}/{found[2]}"
            ),
            readme.read_text(),
        )
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        set_home(ROOT, sys.argv[1].rstrip("/"))
    except ValueError as error:
        sys.exit(f"set_home: {error}")
