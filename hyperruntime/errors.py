"""All errors of the library, with one root.

A message gives the cause and the next step in one sentence. A command that fails is not an error:
its :class:`~hyperruntime.spec.ExecResult` has a non-zero exit code. These errors mean that an
operation could not be done.
"""

from __future__ import annotations

import difflib
import errno
import reprlib
from collections.abc import Iterable, Mapping

from hyperruntime.pickling import reduce_error

_SHOWN_CHARACTERS = 300


class _Short(reprlib.Repr):
    """Shows the begin of a value that others sent, which may be deep or have millions of parts."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 20
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = _SHOWN_CHARACTERS
        self.maxstring = self.maxlong = self.maxother = 10 * _SHOWN_CHARACTERS

    def repr_dict(self, value: Mapping[object, object], level: int) -> str:
        """Return the items in their order; the base class sorts them."""
        if level <= 0 and value:
            return "{...}"
        first = list(value.items())[:_SHOWN_CHARACTERS]
        shown = [
            f"{self.repr1(key, level - 1)}: {self.repr1(one, level - 1)}" for key, one in first
        ]
        return f"{{{', '.join(shown)}{', ...' * (len(first) < len(value))}}}"


_SHORT = _Short()


class HyperRuntimeError(Exception):
    """Root of all errors of this library.

    Attributes:
        exit_code: exit code of ``hyperrun``: 1 the work failed, 2 wrong usage, 3 no usable runtime.

    Example:
        >>> try:
        ...     hr.Limits(cpus=0)
        ... except hr.HyperRuntimeError as error:
        ...     type(error).__name__, error.exit_code
        ('SpecError', 2)
    """

    exit_code: int = 1

    def __reduce__(self) -> tuple[object, ...]:
        """Return what pickles and copies it with its fields."""
        return reduce_error(self)


class SpecError(HyperRuntimeError, ValueError):
    """A value is invalid; raised before any command runs.

    Attributes:
        field: name of the field or option.
        value: the given value.
        allowed: the allowed form, or a hint.
    """

    exit_code = 2

    def __init__(self, field: str, value: object, allowed: str) -> None:
        """Make the message from the field, the value and the allowed form."""
        self.field = field
        self.value = value
        self.allowed = allowed
        text = _SHORT.repr(value)
        shown = f"{text[:_SHOWN_CHARACTERS]}..." if len(text) > _SHOWN_CHARACTERS else text
        super().__init__(f"{field}={shown} is not allowed: {allowed}")


class UserNotFoundError(SpecError, LookupError):
    """The user or the group of a container or of a command does not exist in the container."""

    def __init__(self, user: str | None) -> None:
        """Make the message from the user, as it was given."""
        super().__init__(
            "user",
            user,
            "the container has no such user or group; name one of its image, or use numbers",
        )


class UnsupportedOptionError(HyperRuntimeError):
    """The driver cannot honour a field of a spec on this machine; it refuses instead of ignoring
    the field.

    Attributes:
        driver: name of the driver.
        field: name of the field.
        why: the reason and the next step.
    """

    exit_code = 2

    def __init__(self, driver: str, field: str, why: str) -> None:
        """Make the message from the driver, the field and the reason."""
        self.driver = driver
        self.field = field
        self.why = why
        instead = "; or ask for limits_mode='watchdog'" if field == "limits.memory_bytes" else ""
        super().__init__(f"{driver} cannot honour {field}: {why}{instead}")


def name_hint(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the closest match, else all known names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names) or 'none'}"


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the message about an unknown name; ``kind`` is the kind of thing, such as
    ``runtime``.
    """
    return f"unknown {kind} {name!r}; {name_hint(name, known)}"


class DriverNotFoundError(HyperRuntimeError, LookupError):
    """No installed driver has this name."""

    exit_code = 2

    def __init__(self, name: str, known: Iterable[str]) -> None:
        """Make the message from the unknown name and the known ones."""
        super().__init__(unknown_name("runtime", name, known))


class DriverLoadError(HyperRuntimeError):
    """An installed driver or other plugin cannot be loaded."""

    exit_code = 3


class DomainNotFoundError(HyperRuntimeError, LookupError):
    """No installed domain has this name."""

    exit_code = 2

    def __init__(self, name: str, known: Iterable[str]) -> None:
        """Make the message from the unknown name and the known ones."""
        super().__init__(unknown_name("domain", name, known))


class EngineUnavailableError(HyperRuntimeError):
    """The engine is missing or cannot run a container."""

    exit_code = 3

    def __init__(self, driver: str, why: str, next_step: str = "") -> None:
        """Make the message from the driver, the reason and the next step."""
        self.driver = driver
        self.why = why
        self.next_step = next_step
        super().__init__(
            f"{driver} cannot be used: {why}" + (f"; {next_step}" if next_step else "")
        )


class ProcessLimitError(EngineUnavailableError):
    """No process was left to start a container: a limit of the user is reached."""


class EngineError(HyperRuntimeError):
    """The engine refused or failed an operation; for reasons without an error class of their
    own.
    """


class EngineLateError(EngineError):
    """A call of the engine did not end in time, so nothing is known about what the engine can
    do.
    """


class PruneError(EngineError):
    """Some containers or directories of dead owners could not be removed; the others were.

    Attributes:
        removed: names of the removed ones.
        reasons: one sentence for each that could not be removed.
    """

    def __init__(self, removed: tuple[str, ...], reasons: tuple[str, ...]) -> None:
        """Make the message from both lists."""
        self.removed = removed
        self.reasons = reasons
        super().__init__(
            f"{len(removed)} removed, {len(reasons)} not: {'; '.join(reasons)}; see `hyperrun ps`"
        )


class DeviceError(HyperRuntimeError):
    """A device, such as a GPU, cannot be given to a container, or is missing in it."""


class DeviceNotFoundError(DeviceError, LookupError):
    """No CDI spec describes a device with this name."""

    exit_code = 2

    def __init__(self, name: str, why: str) -> None:
        """Make the message; ``why`` names the known devices or the next step."""
        self.name = name
        super().__init__(f"device {name!r} is not available: {why}")


class DeviceBusyError(DeviceError):
    """Fewer devices are free than were requested."""


class DeviceNotVisibleError(DeviceError):
    """A requested device is missing in the container.

    Attributes:
        missing: missing paths in the container.
    """

    def __init__(self, message: str, missing: tuple[str, ...] = ()) -> None:
        """Keep the message and the paths."""
        self.missing = missing
        super().__init__(message)


class ImageError(HyperRuntimeError):
    """An operation on an image failed."""


class ImageNotFoundError(ImageError, LookupError):
    """The image is not on this machine."""

    exit_code = 2

    def __init__(self, image: str, next_step: str) -> None:
        """Make the message from the image and the next step."""
        self.image = image
        super().__init__(f"image {image!r} is not on this machine; {next_step}")


class ImageBuildError(ImageError):
    """An image build failed; the message contains the last lines of the failed step."""


class ImagePullError(ImageError):
    """An image could not be pulled from its registry; subclasses give the reason."""

    def __init__(self, image: str, why: str, next_step: str) -> None:
        """Make the message from the image, the reason and the next step."""
        self.image = image
        super().__init__(f"image {image!r} was not pulled: {why}; {next_step}")


class ImageUnknownError(ImagePullError, LookupError):
    """The image or its tag does not exist in the registry."""


class ImageLoginError(ImagePullError, PermissionError):
    """The registry requires a login, or refused the given one."""


class RegistryUnreachableError(ImagePullError, ConnectionError):
    """The registry does not answer."""


class ContainerStateError(HyperRuntimeError):
    """The container is closed, not started, or belongs to another process."""


class ContainerLostError(HyperRuntimeError):
    """The container ended, or stopped answering, while it was in use.

    Attributes:
        post_mortem: the known facts about its end (:class:`~hyperruntime.driver.PostMortem`), or
            None.
    """

    def __init__(self, message: str, post_mortem: object = None) -> None:
        """Keep the message and the post-mortem."""
        self.post_mortem = post_mortem
        super().__init__(message)


class ExecLostError(HyperRuntimeError):
    """The shell of a command was ended, so the command's result is unknown; the container still
    runs.
    """


class ExecStartError(HyperRuntimeError):
    """A command could not be started in a live container (pids limit reached, no such directory or
    user).
    """


class WorkdirNotFoundError(ExecStartError, FileNotFoundError):
    """The working directory of an exec does not exist in the container or cannot be entered."""

    def __init__(self, workdir: str) -> None:
        """Make the message from the directory."""
        self.workdir = workdir
        super().__init__(
            f"cannot run a command in {workdir!r}: no such directory in the container, or no "
            "permission; create it first or pass another workdir"
        )


class ServiceError(HyperRuntimeError):
    """A service of a container ended, or was not ready in time.

    Attributes:
        service: its name.
        why: what happened, as part of a sentence.
        log_tail: the last lines of its log.
    """

    def __init__(self, service: str, why: str, log_tail: str) -> None:
        """Make the message."""
        self.service = service
        self.why = why
        self.log_tail = log_tail
        said = f"its last lines:\n{log_tail}" if log_tail else "it wrote nothing"
        super().__init__(f"service {service!r} is not ready: {why}; {said}")


class CommandFailedError(HyperRuntimeError):
    """A command ended with a non-zero exit code, and the caller called ``result.check()``."""


class TransferError(HyperRuntimeError):
    """A file could not be copied into or out of a container."""


class UnsafeArchiveError(TransferError):
    """Data from a container exceeds the limits, or contains members that must not be written on the
    host.

    Attributes:
        refused: ``(member name, reason)`` for each refused member.
    """

    def __init__(self, message: str, refused: tuple[tuple[str, str], ...] = ()) -> None:
        """Keep the message and the refused members."""
        self.refused = refused
        super().__init__(message)


class TransferTimeoutError(TransferError, TimeoutError):
    """A copy into or out of a container ran past its deadline and was stopped."""


class StorageError(HyperRuntimeError, OSError):
    """A file or directory on the host could not be written: no space, no permission, not a
    directory.
    """

    exit_code = 2


class StorageFullError(StorageError):
    """A file could not be written because the disk, or the user's quota, is full."""

    exit_code = 1


FULL = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of an OSError that say that a disk or a quota is full."""


def write_error(message: str, error: OSError) -> StorageError:
    """Return the error for a file or directory that could not be written.

    Args:
        message: what it says.
        error: the reason; if the disk is full, the result is a :class:`StorageFullError`.
    """
    return (StorageFullError if error.errno in FULL else StorageError)(message)


class RepositoryError(HyperRuntimeError):
    """An agent repository is not git, is dirty, or git failed on it."""

    exit_code = 2


class PatchError(HyperRuntimeError):
    """A diff does not apply, or changes files outside the repository.

    Attributes:
        refused: ``(path, reason)`` for each refused part.
    """

    def __init__(self, message: str, refused: tuple[tuple[str, str], ...] = ()) -> None:
        """Keep the message and the refused paths."""
        self.refused = refused
        super().__init__(message)


class RunError(HyperRuntimeError):
    """A run of the generate loop cannot start or continue."""


class RunLockedError(RunError):
    """Another live process owns the run directory."""

    exit_code = 2


class LeaseLostError(RunError):
    """Another process took over the run directory, because it considered this process dead."""


class ArchiveError(RunError):
    """A file of a run is invalid or cannot be read."""

    exit_code = 2


class ExtraMissingError(HyperRuntimeError):
    """A feature needs a package that is not part of the basic installation."""

    exit_code = 2

    def __init__(self, what: str, package: str, extra: str) -> None:
        """Make the message from the features (``what``, plural), the package, and the extra that
        installs it.
        """
        super().__init__(
            f"{what} need {package}, which is not installed; try `pip install "
            f"'hyperruntime[{extra}]'`"
        )


class AgentError(HyperRuntimeError):
    """An agent repository violates its contract (a missing command, an invalid hyperrun.toml)."""

    exit_code = 2


class GatewayError(HyperRuntimeError):
    """The LLM gateway cannot start, or cannot be reached from a container."""


class GatewayConfigError(GatewayError):
    """The configuration of the LLM gateway is invalid, or a key that it names is missing."""

    exit_code = 2


class BudgetExceededError(GatewayError):
    """A budget of requests, tokens or money is exhausted, and requests were refused."""


class PoolError(HyperRuntimeError):
    """An operation of a pool of slots failed."""


class PoolClosedError(PoolError):
    """The pool is stopped or not started."""


class PoolStartError(PoolError):
    """A pool cannot start containers; the exception's cause gives the reason."""


class SlotTimeoutError(PoolError, TimeoutError):
    """No slot became free before the deadline."""


class StaleLeaseError(PoolError):
    """The lease of a slot was released or has expired, or the slot has another holder."""


class SandboxLostError(PoolError):
    """The container of a leased slot ended."""


class NodeLostError(SandboxLostError):
    """A node's job ended, or its connection stayed away too long."""


class ClusterError(HyperRuntimeError):
    """A cluster cannot be used as its configuration asks."""


class ClusterConfigError(ClusterError):
    """The configuration of a cluster is invalid or cannot be read."""

    exit_code = 2


class ReclaimError(HyperRuntimeError):
    """Files that a container wrote on the host cannot be given to this user."""


class ModelError(HyperRuntimeError):
    """A model's server is unreachable, refuses a request, or returns an invalid answer."""


class TrainerError(HyperRuntimeError):
    """A trainer is unreachable, refuses a request, or cannot continue."""


class ContextLengthError(ModelError):
    """A conversation is longer than the context length of the model."""
