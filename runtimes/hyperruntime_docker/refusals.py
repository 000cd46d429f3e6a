"""Translate the text of the daemon or its init about a failed start into an error: pure."""

from __future__ import annotations

import re

from hyperruntime.errors import (
    EngineError,
    EngineUnavailableError,
    HyperRuntimeError,
    ImageNotFoundError,
    SpecError,
    UnsupportedOptionError,
)
from hyperruntime.host.engine_program import start_refusal
from hyperruntime.host.process import last_line
from hyperruntime.spec import ContainerSpec
from hyperruntime_docker.args import NAME, NO_WORKDIR

_NO_SOURCE = re.compile(r"bind source path does not exist: (.*)")
_NO_DEVICE = re.compile(r"could not select device driver|unresolvable CDI devices|CDI device injection failed|nvidia-")
_TRY_AGAIN = "retry (this probes the machine again) or see `hyperrun doctor`"


def explain(text: str, spec: ContainerSpec, user: str | None = None) -> HyperRuntimeError:
    """Return the error for a container, or a shell in it, that did not start.

    Args:
        text: what the daemon or its init said.
        spec: the container's spec.
        user: the user of the shell; None means the spec's user.
    """
    if re.search(r"no such image", text, re.IGNORECASE):
        step = f"get it with `docker pull {spec.image}`, or `hyperrun image build` or `image bootstrap`"
        return ImageNotFoundError(spec.image, step)
    if NO_WORKDIR in text:
        return SpecError("workdir", spec.workdir, "a directory that exists in the image or in a mount, for this user")
    if missing := _NO_SOURCE.search(text):
        return SpecError("Mount.source", missing[1], "a path that exists on the daemon's machine")
    if "argument list too long" in text:
        return SpecError("env", "...", "shorten it: it is more than a command line holds")
    if _NO_DEVICE.search(text):
        return UnsupportedOptionError(NAME, "gpus", f"{last_line(text)}; see `hyperrun doctor`")
    full = f"Docker's storage is full: {last_line(text)}; free space with `docker system prune`"
    if (refusal := start_refusal(text, spec, user, full)) is not None:
        return refusal
    if "is not running" in text or "no such container" in text.lower():
        return EngineError(f"the container is gone: {last_line(text)}")
    return EngineUnavailableError(NAME, last_line(text) or "the container's shell never answered", _TRY_AGAIN)
