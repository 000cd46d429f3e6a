def inward_spiral(rows):
    raise NotImplementedError("to be written")
