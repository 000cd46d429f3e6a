"""The kinds of nodes in a partition of Slurm, and a configuration that asks for one of each."""

from __future__ import annotations

import attrs

from hyperruntime.cluster.config import ClusterConfig
from hyperruntime.host.process import find_program, run_process

_SINFO_S = 30.0
_STATES = ("idle", "mixed", "allocated")  # of nodes that can have a job; best first
# name, CPUs, memory in MiB, gres, features, short state, partition
_FORMAT = "%N|%c|%m|%G|%f|%t|%P"
_DEFAULT = "*"  # after the name of the default partition


@attrs.frozen
class NodeType:
    """Nodes of a partition with equal CPUs, memory, GPUs and features.

    Attributes:
        title: what they have, in words; "" if it is not known.
        names: the nodes; those without work first; empty if they are not known.
    """

    title: str = ""
    names: tuple[str, ...] = ()

    def config(self, config: ClusterConfig) -> ClusterConfig:
        """Return a configuration that asks for the first of these nodes."""
        if not self.names:
            return config
        return attrs.evolve(
            config, options=(*config.options, f"#SBATCH --nodelist={self.names[0]}")
        )


def node_types(config: ClusterConfig) -> tuple[NodeType, ...]:
    """Return the types of nodes of the partition; one without names if only the batch system can
    choose a node.

    Source: sinfo(1).
    """
    program = find_program("sinfo")
    if config.provider != "slurm" or config.parsl or program is None:
        return (NodeType(),)
    partition = ["--partition", config.partition] if config.partition else []
    listed = run_process(
        [program, "--noheader", "--Node", *partition, "--format", _FORMAT], timeout_s=_SINFO_S
    )
    return parse_sinfo(listed.stdout.decode(errors="replace")) or (NodeType(),)


def parse_sinfo(text: str) -> tuple[NodeType, ...]:
    """Return the types of nodes in the lines of ``sinfo``; nodes that cannot have a job are left
    out.

    Of several partitions, only the default one counts.
    """
    found: dict[str, list[tuple[int, str]]] = {}
    rows = [
        line.strip().split("|")
        for line in text.splitlines()
        if line.count("|") == _FORMAT.count("|")
    ]
    default = [row for row in rows if row[-1].endswith(_DEFAULT)]
    for name, cpus, memory, gres, features, state, _ in default or rows:
        ranks = [
            rank
            for rank, known in enumerate(_STATES)
            if known.startswith(state.rstrip("*~#!%$@^-+").lower()[:3])
        ]
        if not ranks:
            continue
        extra = [word for word in (gres, features) if word not in ("(null)", "")]
        title = ", ".join([f"{cpus} CPUs", f"{memory} MiB", *extra])
        found.setdefault(title, []).append((ranks[0], name))
    return tuple(
        NodeType(title, tuple(dict.fromkeys(name for _, name in sorted(nodes))))
        for title, nodes in found.items()
    )
