"""Names for URLs from titles."""

import re
import unicodedata


def slug(title):
    """Return a title in lower case, its words joined by hyphens; letters lose their accents."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]", "-", plain.lower())


def unique_slugs(titles):
    """Return a slug for each title, in order; one that is taken gets -2, -3 and so on."""
    seen = {}
    result = []
    for title in titles:
        name = slug(title)
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else "%s-%d" % (name, seen[name]))
    return result
