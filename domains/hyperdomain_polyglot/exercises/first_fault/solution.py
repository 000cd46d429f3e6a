def first_fault(text):
    open_at, pairs = [], {")": "(", "]": "[", "}": "{"}
    for index, character in enumerate(text):
        if character in pairs.values():
            open_at.append(index)
        elif character in pairs:
            if not open_at or text[open_at.pop()] != pairs[character]:
                return index
    return open_at[-1] if open_at else -1
