"""Links from pages to files of the repository: what they are in the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Pages of the repository's root, and where the site has them.
PAGES = {
    "SECURITY.md": "project/security",
    "CONTRIBUTING.md": "project/contributing",
    "CHANGELOG.md": "project/changelog",
}
SOURCE = "source:"
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)\s#]+)(#[^)\s]*)?(?=\))")


def rewrite(text: str, folder: str) -> str:
    """Return a page whose links to files outside of ``docs`` are links of the site.

    Args:
        text: the page, in Markdown.
        folder: folder of the page, relative to the root of the repository.
    """

    def replace(match: re.Match[str]) -> str:
        path, anchor = posixpath.normpath(posixpath.join(folder, match[1])), match[2] or ""
        if path in PAGES:
            return f"/{PAGES[path]}.md{anchor}"
        if path == "docs/design":
            return "/design/index.md"
        if path.startswith("docs/") and (ROOT / path).is_file():
            return f"/{path.removeprefix('docs/')}{anchor}"
        return f"{SOURCE}{path}" if (ROOT / path).exists() else match[0]

    return _LINK.sub(replace, text)
