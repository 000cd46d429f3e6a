def fits_pattern(pattern, text):
    parts, characters = [], iter(pattern)
    for character in characters:
        if character == "\\":
            taken = next(characters, None)
            if taken is None:
                raise ValueError("nothing is escaped")
            parts.append(("is", taken))
        else:
            parts.append((character, None) if character in "?*" else ("is", character))
    reach = {0}
    for kind, wanted in parts:
        if kind == "*":
            reach = set(range(min(reach), len(text) + 1)) if reach else reach
        else:
            reach = {at + 1 for at in reach if at < len(text) and (kind == "?" or text[at] == wanted)}
    return len(text) in reach
