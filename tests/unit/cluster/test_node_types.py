"""The types of a partition's nodes, from the output of sinfo."""

from __future__ import annotations

import attrs

from hyperruntime.cluster.config import ClusterConfig
from hyperruntime.cluster.node_types import NodeType, node_types, parse_sinfo

SINFO = """\
a1|64|256000|(null)|(null)|alloc
a2|64|256000|(null)|(null)|idle
g1|32|512000|gpu:h100:4|h100,ib|mix
g2|32|512000|gpu:h100:4|h100,ib|down*
g3|32|512000|gpu:h100:4|h100,ib|drain
old|8|16000|(null)|(null)|idle~
not a line
"""


def test_nodes_with_equal_hardware_are_one_type_and_a_free_one_is_asked_for() -> None:
    assert parse_sinfo(SINFO) == (
        NodeType("64 CPUs, 256000 MiB", ("a2", "a1")),
        NodeType("32 CPUs, 512000 MiB, gpu:h100:4, h100,ib", ("g1",)),
        NodeType("8 CPUs, 16000 MiB", ("old",)),
    )
    config = ClusterConfig(provider="slurm", options=("#SBATCH --qos=x",))
    asked = NodeType("", ("a2", "a1")).config(config)
    assert asked == attrs.evolve(config, options=("#SBATCH --qos=x", "#SBATCH --nodelist=a2"))


def test_another_batch_system_chooses_its_node_itself() -> None:
    config = ClusterConfig(provider="pbs")
    (kind,) = node_types(config)
    assert kind.config(config) is config
