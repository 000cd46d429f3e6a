"""What became of the jobs that were started for nodes, and so whether, when and where another one
is worth a try.
"""

from __future__ import annotations

import re

from hyperruntime.cluster.node_jobs import JobEnd
from hyperruntime.errors import ClusterError
from hyperruntime.logs import get_logger

log = get_logger(__name__)

# a node may say anything, and the name gets into scripts of jobs
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_MOST_HOSTS = 3  # with the same error: it is not theirs
_MOST_EXCLUDED = 10  # jobs one after the other on hosts that they should not be on
_FIRST_PAUSE_S = 1.0  # before the next try; doubled each time
_LONGEST_PAUSE_S = 60.0


class Starts:
    """The tries to start nodes of one cluster.

    A job that somebody cancelled, or the batch system, says nothing about its host; the next one
    comes after a pause that grows. A host on which a job failed gets no other one. A cluster
    without nodes gives up when the same error came from three hosts, or no host is left.

    Attributes:
        excluded: the hosts that get no other job.
        pause_s: seconds before the next try.
    """

    def __init__(self, *, has_hosts: bool) -> None:
        """Begin without tries.

        Args:
            has_hosts: whether jobs can go elsewhere; if not, a host counts for each try.
        """
        self.excluded: set[str] = set()
        self.pause_s = 0.0
        self._has_hosts = has_hosts
        self._failed: dict[str, list[str]] = {}  # the hosts, by the error
        self._on_excluded = 0

    def joined(self) -> None:
        """Note a node that has joined."""
        self.pause_s = 0.0
        self._on_excluded = 0
        self._failed = {}

    def delay(self) -> None:
        """Note a try for which there was no job."""
        self.pause_s = min(max(_FIRST_PAUSE_S, 2 * self.pause_s), _LONGEST_PAUSE_S)

    def ended(self, end: JobEnd) -> None:
        """Note a job that ended before its node joined."""
        self.delay()
        if end.kind == "excluded":
            self._on_excluded += 1
        elif end.kind == "failed":
            self._on_excluded = 0
            hosts = self._failed.setdefault(end.why, [])
            if not (
                self._has_hosts and _HOST.fullmatch(end.host)
            ):  # it counts as another host each time
                hosts.append("")
            elif end.host not in hosts:
                hosts.append(end.host)
                self.excluded.add(end.host)
                log.warning("host excluded", host=end.host, reason=end.why)

    def error(self) -> ClusterError | None:
        """Return why no other try is worth it, while no node is there; None if one is."""
        for why, hosts in self._failed.items():
            if len(hosts) >= _MOST_HOSTS:
                known = sorted({host for host in hosts if host})
                where = f" on {', '.join(known)}" if known else ""
                return ClusterError(f"jobs of nodes fail{where} before they join: {why}")
        if self._on_excluded >= _MOST_EXCLUDED:
            bad = ", ".join(sorted(self.excluded))
            return ClusterError(f"no host is left for nodes: jobs failed on {bad}")
        return None

    def forget(self) -> None:
        """Begin again, because nodes are there that work."""
        self._failed = {}
        self._on_excluded = 0
