def fits_pattern(pattern, text):
    raise NotImplementedError("to be written")
