def stack_machine(program):
    raise NotImplementedError("to be written")
