def stack_machine(program):
    stack = []
    needed = {"+": 2, "-": 2, "*": 2, "swap": 2, "dup": 1, "drop": 1}
    for word in program.split():
        if word not in needed:
            if not word.removeprefix("-").isdecimal():
                raise ValueError(f"unknown word {word}")
            stack.append(int(word))
            continue
        if len(stack) < needed[word]:
            raise ValueError(f"too few numbers for {word}")
        top = stack.pop()
        if word == "dup":
            stack += [top, top]
        elif word != "drop":
            below = stack.pop()
            results = {"+": [below + top], "-": [below - top], "*": [below * top], "swap": [top, below]}
            stack += results[word]
    return stack
