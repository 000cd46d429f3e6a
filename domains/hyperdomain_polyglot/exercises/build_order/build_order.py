def build_order(needs):
    raise NotImplementedError("to be written")
