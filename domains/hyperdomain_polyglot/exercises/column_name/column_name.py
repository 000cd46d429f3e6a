def column_name(number):
    raise NotImplementedError("to be written")
