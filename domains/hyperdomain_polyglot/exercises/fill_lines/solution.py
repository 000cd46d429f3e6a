def fill_lines(text, width):
    if width < 1:
        raise ValueError("a line has at least one character")
    lines = []
    for word in text.split():
        if lines and len(word) <= width and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += " " + word
        else:
            lines += [word[at : at + width] for at in range(0, len(word), width)]
    return lines
