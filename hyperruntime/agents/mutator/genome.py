"""Parse a packing program's source text into blocks, change them, and render them as source
text.
"""

import ast
import functools
import re

SLOTS = ("seed", "radii", "search")
LIBRARY = "library.py"

_BLOCK = re.compile(r"^# block: (\w+) (\w+)\n(.*?)^# end$", re.MULTILINE | re.DOTALL)
_STAGES = re.compile(r"^STAGES = \((.*?)\)$", re.MULTILINE | re.DOTALL)


class Program:
    """One program: a block for each slot, the blocks of the stages, and the order of the stages."""

    def __init__(self, head, frame, blocks, stages):
        self.head = head
        self.frame = frame
        self.blocks = dict(blocks)  # (slot, name) -> source text
        self.stages = list(stages)  # stage names in running order

    def copy(self):
        return Program(self.head, self.frame, self.blocks, self.stages)

    def name_in(self, slot):
        return next(name for kind, name in self.blocks if kind == slot)

    def alleles(self):
        """Return the ``(slot, name)`` of all blocks that the program uses."""
        return {(slot, self.name_in(slot)) for slot in SLOTS} | {
            ("stage", name) for name in self.stages
        }

    def put(self, slot, name, text):
        """Set the block of a slot, or add the block of a stage.

        Args:
            slot: one of ``SLOTS``, or ``stage``.
            name: the name of the block.
            text: its source text.
        """
        if slot in SLOTS:
            self.blocks.pop((slot, self.name_in(slot)))
        self.blocks[slot, name] = text

    def describe(self):
        slots = ", ".join(f"{slot}={self.name_in(slot)}" for slot in SLOTS)
        return f"{slots}, stages=({', '.join(self.stages)})"


def parse(text):
    """Return the program of a source text.

    Raises:
        ValueError: a part is missing.
    """
    found = list(_BLOCK.finditer(text))
    line = _STAGES.search(text)
    if not found or not line:
        raise ValueError("the program has no blocks or no STAGES line")
    blocks = {(match[1], match[2]): match[3].strip() + "\n" for match in found}
    stages = [part.strip().removeprefix("stage_") for part in line[1].split(",") if part.strip()]
    missing = [slot for slot in SLOTS if not any(kind == slot for kind, _ in blocks)]
    missing += [name for name in stages if ("stage", name) not in blocks]
    if missing:
        raise ValueError(f"no block for {', '.join(missing)}")
    return Program(text[: found[0].start()].rstrip(), text[line.end() :].lstrip(), blocks, stages)


def render(program):
    """Return the source text of a program; the blocks have a fixed order, so that diffs stay
    small.
    """
    keys = [(slot, program.name_in(slot)) for slot in SLOTS]
    keys += [("stage", name) for name in sorted(set(program.stages))]
    parts = [
        f"# block: {slot} {name}\n{program.blocks[slot, name].strip()}\n\n\n# end"
        for slot, name in keys
    ]
    stages = "".join(f"stage_{name}, " for name in program.stages).rstrip()
    body = "\n\n\n".join([*parts, f"STAGES = ({stages})\n\n{program.frame}"])
    return f"{program.head}\n\n{body}"


def check(text):
    """Check that a text is a complete program that parses.

    Raises:
        SyntaxError: the text is not valid Python.
        ValueError: a part is missing or duplicated.
    """
    tree = ast.parse(text)
    program = parse(text)
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    wanted = [
        *SLOTS,
        *(f"stage_{name}" for name in set(program.stages)),
        "attempt",
        "feasible",
        "pack",
    ]
    for name in wanted:
        if functions.count(name) != 1:
            raise ValueError(
                f"the program has {functions.count(name)} functions named {name}, not 1"
            )


@functools.cache
def constants(block):
    """Return the named numbers of a block: ``{NAME: value}``; do not change the answer."""
    return {
        node.targets[0].id: node.value.value
        for node in ast.parse(block).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and type(node.value.value) in (int, float)
    }


def with_constant(block, name, value):
    """Return a block with one named number replaced.

    Args:
        block: the source text.
        name: the name of the number.
        value: its new value.
    """
    return re.sub(rf"^{name} = .*$", f"{name} = {value!r}", block, flags=re.MULTILINE)


def load_library(folder):
    """Return ``{(slot, name): source text}`` of all building blocks of the library."""
    found = _BLOCK.finditer((folder / LIBRARY).read_text(encoding="utf-8"))
    return {(match[1], match[2]): match[3].strip() + "\n" for match in found}
