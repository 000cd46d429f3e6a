"""Sequential linear programming: improve a point by linear programs in a trust region.

A kind of problem describes a step near a point by a linear program: the gain to maximise, linear
limits, and bounds. The best packings and point sets are corners of such programs, so a few programs
find one to the last digits of a float.
"""

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csc_matrix

SMALLEST_REACH = 1e-7
LEAST_GAIN = 1e-9
GROW = 2.0
SHRINK = 0.5
GOOD = 0.7
BAD = 0.25


def climb(kind, x, clock, aim=-np.inf):
    """Return a local optimum near ``x``, or as far as the clock allows.

    Args:
        kind: has ``merit(x)``, ``program(x, reach)`` and ``moved(x, step)``; and ``hope``, how many
            times the gain of a step a climb may still gain.
        x: an array.
        clock: says when the processor time is used up.
        aim: a merit; a climb that would not reach it is given up.
    """
    x = kind.settle(x)
    merit, reach = kind.merit(x), kind.reach
    while reach > SMALLEST_REACH and not clock.over():
        step, expected = best_step(*kind.program(x, reach))
        if step is None:
            reach *= SHRINK
            continue
        if expected < LEAST_GAIN or merit + kind.hope * expected < aim:
            break
        new = kind.moved(x, step)
        gain = kind.merit(new) - merit
        if gain > 0:
            x, merit = new, merit + gain
        if gain > GOOD * expected:
            reach = min(kind.reach, GROW * float(np.abs(step[:-1]).max()))
        elif gain < BAD * expected:
            reach *= SHRINK
    return x


def best_step(gain, rows, limits, bounds):
    """Return the step with the largest gain, and that gain; None and 0 if there is no step.

    Args:
        gain: (variables,) weights.
        rows: (limits, variables) matrix, dense or sparse.
        limits: (limits,) upper limits of ``rows @ step``.
        bounds: (variables, 2) smallest and largest values.
    """
    # programs this small gain nothing from a presolve, and ``linprog`` takes longer to check them
    done = milp(
        -gain,
        constraints=LinearConstraint(csc_matrix(rows), -np.inf, limits),
        bounds=Bounds(bounds[:, 0], bounds[:, 1]),
        options={"presolve": False},
    )
    return (None, 0.0) if done.x is None else (done.x, float(gain @ done.x))


def minimum_program(values, slopes, extra, reach, size):
    """Return the program of a step that makes the smallest of many values as large as possible.

    Only values that a step may reach have a row. The last variable is the gain.

    Args:
        values: (rows,) values at the point.
        slopes: (rows, size) their derivatives.
        extra: ``(rows, limits)`` of more linear limits on the step.
        reach: the largest change of a variable.
        size: the number of variables.
    """
    least = values.min()
    near = values - least <= 2 * reach * np.abs(slopes).sum(axis=1)
    count = int(near.sum())
    rows = np.zeros((count + len(extra[1]), size + 1))
    rows[:count, :size] = -slopes[near]
    rows[:count, size] = 1.0
    rows[count:, :size] = extra[0]
    limits = np.concatenate([values[near] - least, extra[1]])
    gain = np.zeros(size + 1)
    gain[size] = 1.0
    bounds = np.full((size + 1, 2), (-reach, reach))
    bounds[size] = (0.0, np.inf)
    return gain, rows, limits, bounds
