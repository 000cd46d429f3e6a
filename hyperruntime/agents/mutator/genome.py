"""A packing program as blocks: read from its source text, changed, and written back as source text."""

import ast
import re

SLOTS = ("seed", "radii", "search")
LIBRARY_FILES = ("library_seed.py", "library_radii.py", "library_stage.py", "library_search.py")

_BLOCK = re.compile(r"^# block: (\w+) (\w+)\n(.*?)^# end$", re.MULTILINE | re.DOTALL)
_STAGES = re.compile(r"^STAGES = \((.*?)\)$", re.MULTILINE | re.DOTALL)


class Program:
    """One program: a block for each slot, the stages' blocks, and the order in which the stages run."""

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
        """Return the ``(slot, name)`` of everything that the program uses."""
        return {(slot, self.name_in(slot)) for slot in SLOTS} | {("stage", name) for name in self.stages}

    def put(self, slot, name, text):
        """Set the block of a slot; of stages there may be many."""
        if slot in SLOTS:
            self.blocks.pop((slot, self.name_in(slot)))
        self.blocks[slot, name] = text

    def describe(self):
        slots = ", ".join(f"{slot}={self.name_in(slot)}" for slot in SLOTS)
        return f"{slots}, stages=({', '.join(self.stages)})"


def parse(text):
    """Return the program that a source text spells; raises ValueError where a part is missing."""
    found = list(_BLOCK.finditer(text))
    line = _STAGES.search(text)
    if not found or not line:
        raise ValueError("no blocks, or no line of stages")
    blocks = {(match[1], match[2]): match[3].strip() + "\n" for match in found}
    stages = [part.strip().removeprefix("stage_") for part in line[1].split(",") if part.strip()]
    missing = [slot for slot in SLOTS if not any(kind == slot for kind, _ in blocks)]
    missing += [name for name in stages if ("stage", name) not in blocks]
    if missing:
        raise ValueError(f"no block for {', '.join(missing)}")
    return Program(text[: found[0].start()].rstrip(), text[line.end() :].lstrip(), blocks, stages)


def render(program):
    """Return the source text of a program, blocks in a fixed order so that diffs stay small."""
    keys = [(slot, program.name_in(slot)) for slot in SLOTS]
    keys += [("stage", name) for name in sorted(set(program.stages))]
    parts = [f"# block: {slot} {name}\n{program.blocks[slot, name].strip()}\n\n\n# end" for slot, name in keys]
    stages = "".join(f"stage_{name}, " for name in program.stages).rstrip()
    body = "\n\n\n".join([*parts, f"STAGES = ({stages})\n\n{program.frame}"])
    return f"{program.head}\n\n{body}"


def check(text):
    """Raise SyntaxError or ValueError unless the text is a whole program that compiles."""
    tree = ast.parse(text)
    program = parse(text)
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    wanted = [*SLOTS, *(f"stage_{name}" for name in set(program.stages)), "attempt", "feasible", "pack"]
    for name in wanted:
        if functions.count(name) != 1:
            raise ValueError(f"{functions.count(name)} functions named {name}")


def constants(block):
    """Return the named numbers of a block: ``{NAME: value}``."""
    return {
        node.targets[0].id: node.value.value
        for node in ast.parse(block).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and type(node.value.value) in (int, float)
    }


def with_constant(block, name, value):
    """Return the block with one named number replaced."""
    return re.sub(rf"^{name} = .*$", f"{name} = {value!r}", block, flags=re.MULTILINE)


def load_library(folder):
    """Return ``{(slot, name): source text}`` of all building blocks on the shelf."""
    library = {}
    for file in LIBRARY_FILES:
        for match in _BLOCK.finditer((folder / file).read_text(encoding="utf-8")):
            library[match[1], match[2]] = re.sub(r"  # noqa: F811.*$", "", match[3], flags=re.MULTILINE).strip() + "\n"
    return library
