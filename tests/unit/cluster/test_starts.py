"""When another node is asked for, and when a cluster gives up."""

from __future__ import annotations

from hyperruntime.cluster.node_jobs import JobEnd
from hyperruntime.cluster.starts import Starts


def failed(host: str, why: str = "exit code 3, 'no module'") -> JobEnd:
    return JobEnd(kind="failed", host=host, why=why)


def test_a_bad_host_is_excluded_and_ends_nothing() -> None:
    starts = Starts(has_hosts=True)
    for _ in range(2):
        starts.ended(failed("n1"))
    assert starts.excluded == {"n1"}
    assert starts.error() is None
    starts.joined()
    assert (starts.excluded, starts.pause_s) == ({"n1"}, 0)


def test_the_same_error_on_three_hosts_ends_a_cluster_and_is_told() -> None:
    starts = Starts(has_hosts=True)
    for host in ("n1", "n2"):
        starts.ended(failed(host))
    starts.ended(failed("n3", "exit code 1"))
    assert starts.error() is None
    starts.ended(failed("n4"))
    assert "jobs of nodes fail on n1, n2, n4 before they join: exit code 3" in str(starts.error())


def test_cancelled_jobs_do_not_count_and_the_next_ones_come_later() -> None:
    starts = Starts(has_hosts=True)
    pauses = []
    for _ in range(8):
        starts.ended(JobEnd(kind="cancelled", host="n1", why="it was cancelled"))
        pauses.append(starts.pause_s)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert (starts.error(), starts.excluded) == (None, set())


def test_a_cluster_ends_when_no_host_is_left() -> None:
    starts = Starts(has_hosts=True)
    starts.ended(failed("n1"))
    for _ in range(10):
        starts.ended(JobEnd(kind="excluded", host="n1", why="exit code 75"))
    assert "no host is left for nodes: jobs failed on n1" in str(starts.error())


def test_where_all_jobs_are_on_one_host_three_failures_end_a_cluster() -> None:
    starts = Starts(has_hosts=False)
    for _ in range(3):
        starts.ended(failed("here"))
    assert starts.excluded == set()
    assert "jobs of nodes fail before they join: exit code 3" in str(starts.error())


def test_a_host_that_no_script_can_name_is_not_excluded() -> None:
    starts = Starts(has_hosts=True)
    for host in ("$(touch x)", 'a" b', "n1\n#SBATCH --x", "*"):
        starts.ended(failed(host, host))
    assert starts.excluded == set()
