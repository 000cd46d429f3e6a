"""Plans: how the processor time of a problem is spent, one JSON file each; the meta agent writes
them.
"""

import json

FOLDER = "plans"
DEFAULT = {"seed": 0, "moves": {}, "size": 1.0, "answers": [], "chains": []}


def read_plan(folder, problem):
    """Return the plan of a problem; the default if it has none.

    ``seed`` of random numbers; ``moves``, the shares of the tries, 1 for those without one;
    ``size`` of changes, as a factor of the usual one; ``answers``, the best one of each chain that
    ever was, with its name; ``chains`` to continue, each a name, an answer and the fails.

    Args:
        folder: of the agent.
        problem: the name of the problem.
    """
    path = folder / FOLDER / f"{problem}.json"
    return {**DEFAULT, **(json.loads(path.read_text("utf-8")) if path.is_file() else {})}


def write_plan(folder, problem, plan):
    """Write a plan, one line for each part and each answer, so that diffs are short."""
    parts = [f'"{key}": {json.dumps(plan[key])}' for key in ("seed", "size", "moves", "chains")]
    answers = ",\n".join(json.dumps(answer) for answer in plan["answers"])
    parts.append(f'"answers": [\n{answers}\n]')
    path = folder / FOLDER / f"{problem}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
