def merge_spans(spans):
    raise NotImplementedError("to be written")
