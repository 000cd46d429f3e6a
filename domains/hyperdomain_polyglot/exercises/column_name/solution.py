def column_name(number):
    if number < 1:
        raise ValueError("the first column is 1")
    name = ""
    while number:
        number, rest = divmod(number - 1, 26)
        name = chr(65 + rest) + name
    return name
