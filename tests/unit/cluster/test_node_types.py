"""The types of a partition's nodes, from the output of sinfo."""

from __future__ import annotations

import attrs

from hyperruntime.cluster.config import ClusterConfig
from hyperruntime.cluster.node_types import NodeType, node_types, parse_sinfo

SINFO = """\
a1|64|256000|(null)|(null)|alloc|main
a2|64|256000|(null)|(null)|idle|main
g1|32|512000|gpu:h100:4|h100,ib|mix|main
g2|32|512000|gpu:h100:4|h100,ib|down*|main
g3|32|512000|gpu:h100:4|h100,ib|drain|main
old|8|16000|(null)|(null)|idle~|main
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


def test_nodes_of_other_partitions_than_the_default_one_are_left_out() -> None:
    text = SINFO.replace("|main", "|other") + "a1|64|256000|(null)|(null)|mix|main*\n"
    assert parse_sinfo(text) == (NodeType("64 CPUs, 256000 MiB", ("a1",)),)


def test_another_batch_system_chooses_its_node_itself() -> None:
    config = ClusterConfig(provider="pbs")
    (kind,) = node_types(config)
    assert kind.config(config) is config
