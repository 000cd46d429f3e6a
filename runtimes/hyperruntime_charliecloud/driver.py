"""The Charliecloud driver: for sites that have no other engine, and for ordinary users only."""

from __future__ import annotations

from hyperruntime.driver import Driver
from hyperruntime.layers.images import StoredImages
from hyperruntime.layers.namespace import Job
from hyperruntime.layers.owners import has_all_ids
from hyperruntime.layers.plain_sandboxes import PlainContainer, PlainDriver
from hyperruntime_charliecloud.args import NAME, make_job
from hyperruntime_charliecloud.probe import cached_probe, findings


class CharliecloudContainer(PlainContainer):
    """A container whose main process is the shell in the container of ``ch-run``."""

    def _job(self) -> Job:
        assert self._source is not None
        return make_job(self._launch, self._source, self._files, self._layers, self._filter_path)


class CharliecloudDriver(PlainDriver[StoredImages]):
    """Driver for Charliecloud 0.31 and newer."""

    name = NAME
    interface_version = 1
    container = CharliecloudContainer
    one_user = "ch-run has one user, which is root inside and you outside; use another engine"

    def __init__(self) -> None:
        """Create a driver; the probe runs when it is first needed."""
        super().__init__(cached_probe, findings, StoredImages(NAME))

    def _users(self) -> bool:
        return has_all_ids()  # as owners of files: the store is that of all engines


_: type[Driver] = CharliecloudDriver
