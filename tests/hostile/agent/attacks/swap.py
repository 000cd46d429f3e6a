"""Replace the directory in which the next interpreter looks for the harness."""

from attacks.evaluator import swap_above


def task(scene, inputs):
    if inputs["n"] == 0:
        scene.attempt("swap what is above the harness", swap_above)
    return {"score": 1.0}
