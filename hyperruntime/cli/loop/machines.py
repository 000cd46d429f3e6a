"""Where generations are made: on this machine, or on the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import attrs

from hyperruntime.cli.command import State
from hyperruntime.cli.messages import Lines, note
from hyperruntime.images.recipes import BASE, image_reference
from hyperruntime.loop.run.plan import RunPlan
from hyperruntime.loop.run.run import MakeExecutor
from hyperruntime.loop.workbench.model_access import key_variables
from hyperruntime.loop.workbench.open_containers import LoopRuntime
from hyperruntime.runtime import Runtime

Plan = TypeVar("Plan", bound=RunPlan)


@attrs.frozen
class Machines:
    """Where generations are made: here, or on the nodes of a cluster.

    Attributes:
        name: for people.
        runtime: for this machine.
        make_executor: as in a plan; None: the run's own.
    """

    name: str
    runtime: LoopRuntime
    make_executor: MakeExecutor | None = None

    def with_executor(self, plan: Plan) -> Plan:
        """Return the plan with the executor of these machines."""
        return attrs.evolve(plan, make_executor=self.make_executor or plan.make_executor)


@contextmanager
def machines(state: State, plan: RunPlan, cluster: Path | None) -> Iterator[Machines]:
    """Yield an open runtime that has the run's image, or an open cluster.

    The nodes of a cluster make the image, and get none of the run's keys.

    Args:
        state: the global options.
        plan: the plan of the run.
        cluster: as for :func:`~hyperruntime.cli.loop.generate.go_on`.
    """
    if cluster is None:
        with state.open_runtime(run_id=str(plan.options.run_id)) as runtime:
            ensure_image(runtime, plan.image)
            yield Machines(f"{runtime.name} {runtime.info.version}", runtime)
        return
    from hyperruntime.cluster.config import read_config
    from hyperruntime.cluster.generations.executor import RunCluster

    config = read_config(cluster, state.runtime)
    images = tuple(dict.fromkeys((*config.images, plan.image)))
    config = attrs.evolve(
        config, withhold=(*config.withhold, *key_variables(plan.gateway)), images=images
    )
    with RunCluster(config, plan.layout.root.absolute()) as nodes:
        yield Machines(
            f"at most {config.max_nodes} nodes by {config.provider}", nodes.runtime, nodes.executor
        )


def ensure_image(runtime: Runtime, name: str) -> None:
    """Make the run's image if it is missing, and show the engine's output.

    Args:
        runtime: the runtime that needs the image.
        name: recipe name or image reference.
    """
    reference = image_reference(name)
    if not runtime.images.exists(reference):
        if name == BASE and "images.load_rootfs" not in runtime.info.refuses:
            note(f"image {reference} is missing; making it, which takes about a minute")
        runtime.images.ensure(name, on_output=Lines())
