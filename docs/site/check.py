"""Check a built site: every link inside it has a target and an anchor, and no page loads anything
from a network.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADS = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "iframe": ("src",),
    "video": ("src",),
    "audio": ("src",),
    "object": ("data",),
    "embed": ("src",),
    "link": ("href",),
}
_HARMLESS = ("canonical", "next", "prev", "author", "license", "search", "index")


class _Page(HTMLParser):
    """The links, the anchors and the loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        for name in _LOADS.get(tag, ()):
            if values.get(name) and values.get("rel", "") not in _HARMLESS:
                self.loaded.append(values[name])


def problems(site: Path) -> Iterator[str]:
    """Yield one line for each broken link and each file that a page would load from a network.

    Args:
        site: directory of the built site.
    """
    pages = {path: _Page(path.read_text(errors="replace")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        where = path.relative_to(site)
        for address in (*page.links, *page.loaded):
            if problem := _broken(site, path, address, pages):
                yield f"{where}: {address}: {problem}"
        yield from (
            f"{where}: {address}: loaded from a network"
            for address in page.loaded
            if _is_remote(address)
        )
    for style in sorted(site.rglob("*.css")):
        text = style.read_text(errors="replace")
        if any(
            mark in text for mark in ("url(http", "url('http", 'url("http', "url(//", "@import")
        ):
            yield f"{style.relative_to(site)}: loads from a network"


def _is_remote(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in ("http", "https") or (not parts.scheme and bool(parts.netloc))


def _broken(site: Path, path: Path, address: str, pages: dict[Path, _Page]) -> str:
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return ""
    target = path if not parts.path else Path(path.parent, unquote(parts.path)).resolve()
    if not target.is_relative_to(site.resolve()) or not target.exists():
        return "the file does not exist"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return "the page has no such anchor"
    return ""


if __name__ == "__main__":
    found = list(problems(Path(sys.argv[1]).resolve()))
    print("\n".join(found) or "The links of the site have targets, and no page needs a network.")
    sys.exit(bool(found))
