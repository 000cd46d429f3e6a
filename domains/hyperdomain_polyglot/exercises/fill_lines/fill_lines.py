def fill_lines(text, width):
    raise NotImplementedError("to be written")
