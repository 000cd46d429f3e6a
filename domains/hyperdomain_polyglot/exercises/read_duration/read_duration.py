def read_duration(text):
    raise NotImplementedError("to be written")
