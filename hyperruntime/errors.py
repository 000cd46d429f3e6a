"""Every error the library raises, in one tree.

A message names the cause and the next step in one sentence. "The command failed" is never an error here: it is
an :class:`~hyperruntime.spec.ExecResult` with a non-zero exit code. These errors say that something *could not be
run*.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SHOWN_CHARACTERS = 300


class HyperRuntimeError(Exception):
    """Root of all errors of this library.

    Attributes:
        exit_code: what the command line exits with (1 work failed, 2 wrong usage, 3 no usable runtime).
    """

    exit_code: int = 1


class SpecError(HyperRuntimeError, ValueError):
    """A value is not of the allowed form; raised on construction, before anything runs."""

    exit_code = 2

    def __init__(self, field: str, value: object, allowed: str) -> None:
        """Name the field, the value that was given and the form that is allowed."""
        self.field, self.value, self.allowed = field, value, allowed
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}..."
        super().__init__(f"{field}={shown} is not allowed: {allowed}")


class UnsupportedOptionError(HyperRuntimeError):
    """The driver cannot honour a field of a spec here, and refuses rather than weakens it."""

    exit_code = 2

    def __init__(self, driver: str, field: str, why: str) -> None:
        """Name the driver, the field and the reason with the next step."""
        self.driver, self.field, self.why = driver, field, why
        instead = "; or ask for limits_mode='watchdog'" if field == "limits.memory_bytes" else ""
        super().__init__(f"{driver} cannot honour {field}: {why}{instead}")


def name_hint(name: str, known: Iterable[str]) -> str:
    """Return what a user may have meant: the closest match, else the known names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names) or 'none'}"


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Return one sentence about an unknown name."""
    return f"unknown {kind} {name!r}; {name_hint(name, known)}"


class DriverNotFoundError(HyperRuntimeError, LookupError):
    """No installed driver has this name."""

    exit_code = 2

    def __init__(self, name: str, known: Iterable[str]) -> None:
        """Name what was asked for and what there is."""
        super().__init__(unknown_name("runtime", name, known))


class DriverLoadError(HyperRuntimeError):
    """A driver's entry point exists but cannot be loaded."""

    exit_code = 3


class DomainNotFoundError(HyperRuntimeError, LookupError):
    """No installed domain has this name."""

    exit_code = 2

    def __init__(self, name: str, known: Iterable[str]) -> None:
        """Name what was asked for and what there is."""
        super().__init__(unknown_name("domain", name, known))


class EngineUnavailableError(HyperRuntimeError):
    """The engine is missing, or present and unable to run a container."""

    exit_code = 3

    def __init__(self, driver: str, why: str, next_step: str = "") -> None:
        """Name the driver, why it cannot be used and what to do."""
        self.driver, self.why, self.next_step = driver, why, next_step
        super().__init__(f"{driver} cannot be used: {why}" + (f"; {next_step}" if next_step else ""))


class EngineError(HyperRuntimeError):
    """The engine refused or failed an operation for a reason that has no error of its own."""


class PruneError(EngineError):
    """Some of what dead owners left could not be removed; the rest was.

    Attributes:
        removed: names of what was removed.
        reasons: one sentence for each that was not.
    """

    def __init__(self, removed: tuple[str, ...], reasons: tuple[str, ...]) -> None:
        """Keep both lists beside the sentence."""
        self.removed, self.reasons = removed, reasons
        super().__init__(f"{len(removed)} removed, {len(reasons)} not: {'; '.join(reasons)}; see `hyperrun ps`")


class DeviceError(HyperRuntimeError):
    """A device, such as a GPU, cannot be given to a container, or did not arrive in it."""


class DeviceNotFoundError(DeviceError, LookupError):
    """No CDI spec describes a device of this name."""

    exit_code = 2

    def __init__(self, name: str, why: str) -> None:
        """Name the device, and which there are or what to do."""
        self.name = name
        super().__init__(f"device {name!r} is not known: {why}")


class DeviceBusyError(DeviceError):
    """Fewer devices are free than were asked for."""


class DeviceNotVisibleError(DeviceError):
    """A device was asked for and is not there in the container.

    Attributes:
        missing: paths in the container.
    """

    def __init__(self, message: str, missing: tuple[str, ...] = ()) -> None:
        """Keep the paths beside the sentence."""
        self.missing = missing
        super().__init__(message)


class ImageError(HyperRuntimeError):
    """Something about an image went wrong."""


class ImageNotFoundError(ImageError, LookupError):
    """The image is not on this machine."""

    exit_code = 2

    def __init__(self, image: str, next_step: str) -> None:
        """Name the image and how to get it."""
        self.image = image
        super().__init__(f"image {image!r} is not on this machine; {next_step}")


class ImageBuildError(ImageError):
    """An image build failed; the message holds the failing step's last lines."""


class ImagePullError(ImageError):
    """An image could not be had from its registry; its subclasses say why."""

    def __init__(self, image: str, why: str, next_step: str) -> None:
        """Name the image, why it did not come and what to do."""
        self.image = image
        super().__init__(f"image {image!r} was not pulled: {why}; {next_step}")


class ImageUnknownError(ImagePullError, LookupError):
    """The registry has no such image or tag."""


class ImageLoginError(ImagePullError, PermissionError):
    """The registry wants a login, or refused the one it got."""

    def __str__(self) -> str:
        """Return the sentence (OSError would print its tuple)."""
        return str(self.args[0])


class RegistryUnreachableError(ImagePullError, ConnectionError):
    """The registry does not answer."""

    def __str__(self) -> str:
        """Return the sentence (OSError would print its tuple)."""
        return str(self.args[0])


class ContainerStateError(HyperRuntimeError):
    """The container was closed, or not started, when something was asked of it."""


class ContainerLostError(HyperRuntimeError):
    """The container ended, or stopped answering, while it was in use.

    Attributes:
        post_mortem: what is known of its end (:class:`~hyperruntime.driver.PostMortem`), or None.
    """

    def __init__(self, message: str, post_mortem: object = None) -> None:
        """Keep the post-mortem beside the sentence."""
        self.post_mortem = post_mortem
        super().__init__(message)


class ExecLostError(HyperRuntimeError):
    """The shell a command ran through was ended, and nobody knows how the command did; the container lives on."""


class ExecStartError(HyperRuntimeError):
    """A command could not be started in a container that is alive (no process left, no such directory)."""


class WorkdirNotFoundError(ExecStartError, FileNotFoundError):
    """The working directory of an exec does not exist in the container, or cannot be entered."""

    def __init__(self, workdir: str) -> None:
        """Name the directory."""
        self.workdir = workdir
        super().__init__(
            f"cannot run a command in {workdir!r}: no such directory in the container, or no permission; "
            "create it first or pass another workdir"
        )

    def __str__(self) -> str:
        """Return the sentence (OSError would print its tuple)."""
        return str(self.args[0])


class CommandFailedError(HyperRuntimeError):
    """A command ended with a non-zero code and the caller asked for success (``result.check()``)."""


class TransferError(HyperRuntimeError):
    """A file could not be copied into or out of a container."""


class UnsafeArchiveError(TransferError):
    """A tree that came out of a container held members that may not be written here.

    Attributes:
        refused: ``(member name, reason)`` for each.
    """

    def __init__(self, message: str, refused: tuple[tuple[str, str], ...] = ()) -> None:
        """Keep the refused members beside the sentence."""
        self.refused = refused
        super().__init__(message)


class TransferTimeoutError(TransferError, TimeoutError):
    """A copy into or out of a container did not end before its deadline, so it was given up and ended."""

    def __str__(self) -> str:
        """Return the sentence (OSError would print its tuple)."""
        return str(self.args[0])


class StorageError(HyperRuntimeError, OSError):
    """A file or directory of ours could not be written: no space, no permission, not a directory."""

    exit_code = 2

    def __str__(self) -> str:
        """Return the sentence (OSError would print its tuple)."""
        return str(self.args[0])


class RepositoryError(HyperRuntimeError):
    """An agent repository is not git, is dirty, or git failed on it."""

    exit_code = 2


class PatchError(HyperRuntimeError):
    """A diff does not apply, or tries to leave the repository.

    Attributes:
        refused: ``(path, reason)`` for each part that was refused.
    """

    def __init__(self, message: str, refused: tuple[tuple[str, str], ...] = ()) -> None:
        """Keep the refused paths beside the sentence."""
        self.refused = refused
        super().__init__(message)


class RunError(HyperRuntimeError):
    """A run of the generate loop cannot start or go on."""


class RunLockedError(RunError):
    """Another live process owns the run directory."""

    exit_code = 2


class LeaseLostError(RunError):
    """The run directory was taken over by another process, which took this one for dead."""


class ArchiveError(RunError):
    """A run's files cannot be read as what they should be."""

    exit_code = 2


class ExtraMissingError(HyperRuntimeError):
    """What was asked for needs a package that is not part of the plain installation."""

    exit_code = 2

    def __init__(self, what: str, package: str, extra: str) -> None:
        """Name what needs it, the package, and the extra that brings it."""
        super().__init__(f"{what} need {package}, which is not installed; try `pip install 'hyperruntime[{extra}]'`")


class AgentError(HyperRuntimeError):
    """An agent repository breaks its contract (a missing command, a bad hyperrun.toml)."""

    exit_code = 2


class GatewayError(HyperRuntimeError):
    """The LLM gateway cannot start, or cannot be reached from a container."""


class GatewayConfigError(GatewayError):
    """The configuration of the LLM gateway is wrong, or a key that it names is missing."""

    exit_code = 2


class BudgetExceededError(GatewayError):
    """A budget of requests, tokens or money is used up, and requests were refused for it."""


class PoolError(HyperRuntimeError):
    """A pool of slots cannot do what it was asked."""


class PoolClosedError(PoolError):
    """The pool was stopped, or not started, when something was asked of it."""


class PoolStartError(PoolError):
    """No container of a pool can be started; its cause says why."""


class SlotTimeoutError(PoolError, TimeoutError):
    """No slot became free before the deadline."""


class StaleLeaseError(PoolError):
    """The slot was released, expired, or is another holder's by now."""


class SandboxLostError(PoolError):
    """The container of a leased slot ended."""


class ReclaimError(HyperRuntimeError):
    """What a container wrote on the host cannot be made its user's own."""


class ModelError(HyperRuntimeError):
    """A model's server is gone, refuses, or answers with what no turn can be made of."""


class TrainerError(HyperRuntimeError):
    """A trainer cannot be reached, refuses, or cannot go on."""


class ContextLengthError(ModelError):
    """A conversation has become longer than what the model was served with."""
