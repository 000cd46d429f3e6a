def read_duration(text):
    import re

    found = re.fullmatch(r"(?:([0-9]+)d)? *(?:([0-9]+)h)? *(?:([0-9]+)m)? *(?:([0-9]+)s)?", text)
    if not found or not any(found.groups()) or text != text.strip(" "):
        raise ValueError("no duration")
    return sum(int(number or 0) * size for number, size in zip(found.groups(), (86400, 3600, 60, 1)))
