"""The example of docs/integrations/inspect_ai.md."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import sandbox


@solver
def run_input() -> Solver:
    """Return a solver that runs the sample's input as a command; a tool such as ``bash()`` does the
    same for models.
    """

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        result = await sandbox().exec(["sh", "-c", state.input_text], timeout=60)
        state.output.completion = result.stdout
        return state

    return solve


@task
def arithmetic() -> Task:
    """Return a task of which each sample has a container."""
    samples = [Sample(input="expr 6 '*' 7; hostname", target="42") for _ in range(3)]
    return Task(dataset=samples, solver=run_input(), scorer=includes(), sandbox="hyperruntime")
