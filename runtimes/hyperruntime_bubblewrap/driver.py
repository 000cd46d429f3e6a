"""The bubblewrap driver: for machines without a container engine, and for ordinary users only."""

from __future__ import annotations

from hyperruntime.driver import Driver, Image, Launch
from hyperruntime.errors import HyperRuntimeError, SpecError
from hyperruntime.layers.images import ImageSource, StoredImages
from hyperruntime.layers.namespace import Job
from hyperruntime.layers.plain_sandboxes import PlainContainer, PlainDriver
from hyperruntime_bubblewrap.args import IMAGE, NAME, make_job
from hyperruntime_bubblewrap.probe import cached_probe, findings


class BubblewrapImages(StoredImages):
    """The images of this user's store, and ``host``: this machine's programs."""

    def exists(self, reference: str) -> bool:
        """Return whether a reference names the host's userland, or an image of the store."""
        return reference == IMAGE or super().exists(reference)

    def list(self) -> tuple[Image, ...]:
        """Return the host's userland, and the images of the store."""
        return (Image(id=IMAGE, references=(IMAGE,), size_bytes=0, created=0), *super().list())


class BubblewrapContainer(PlainContainer):
    """A container whose main process is the shell attached to ``bwrap``."""

    def _job(self) -> Job:
        return make_job(
            self._launch,
            self._source,
            self._files,
            filter_path=self._filter_path,
            layers=self._layers,
            users=self._found.users,
        )

    def explain_start_failure(self, error_text: str, user: str | None = None) -> HyperRuntimeError:
        """Return the error that says why the shell never answered."""
        if "Can't chdir to" in error_text:
            workdir = self._launch.spec.workdir
            return SpecError(
                "workdir", workdir, "a directory that exists in the image or in a mount"
            )
        return super().explain_start_failure(error_text, user)


class BubblewrapDriver(PlainDriver[BubblewrapImages]):
    """Driver for bubblewrap 0.8 and newer."""

    name = NAME
    container = BubblewrapContainer

    def __init__(self) -> None:
        """Create a driver; the probe runs when it is first needed."""
        super().__init__(cached_probe, findings, BubblewrapImages(NAME))

    def _source(self, launch: Launch) -> ImageSource | None:
        return None if launch.spec.image == IMAGE else super()._source(launch)


_: type[Driver] = BubblewrapDriver
