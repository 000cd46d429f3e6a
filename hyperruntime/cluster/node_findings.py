"""Findings about a node: those of ``hyperrun doctor`` there, and those that the work of a cluster
needs besides; each failure has a next step.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence

import attrs

from hyperruntime.driver import Finding
from hyperruntime.errors import HyperRuntimeError, UnsupportedOptionError
from hyperruntime.gpu.devices import load_devices
from hyperruntime.gpu.grant import gpu_devices, granted_gpus
from hyperruntime.host.process import run_process
from hyperruntime.host.python import python_args
from hyperruntime.images.recipes import image_reference
from hyperruntime.runtime import Runtime, open_runtime
from hyperruntime.spec import ContainerSpec

_DOCTOR_S = 300.0  # it starts a container with each engine
_LOOK_S = 60.0
_EXISTING = 'for path; do [ -e "$path" ] && echo "$path"; done; exit 0'
ADMINISTRATOR = "ask the administrator"


@attrs.frozen(kw_only=True)
class Needs:
    """Needs of the work on a node.

    Attributes:
        image: name of a recipe, or a reference; "" for none.
        runtime: the engine; ``auto`` means any.
        gpus: how many GPUs the node's job asks for.
    """

    image: str = ""
    runtime: str = "auto"
    gpus: int = 0


def node_findings(needs: Needs) -> Iterator[Finding]:
    """Yield what works on this machine, and what work needs but does not have; runs on the node."""
    done = run_process(
        python_args("-m", "hyperruntime.cli", "doctor", "--json"), timeout_s=_DOCTOR_S
    )
    try:
        said = json.loads(done.stdout)
    except ValueError:
        yield Finding(subject="hyperrun doctor", ok=False, detail=done.error_text)
        return
    for part, findings in said["findings"].items():
        for found in (Finding(**one) for one in findings):
            if part == "machine":
                yield found
            else:  # no failure: one engine is enough
                subject = f"{part}: {found.subject}"
                yield attrs.evolve(found, subject=subject, ok=found.ok or None)
    yield _any_engine(needs.runtime, said["usable"])
    yield _gpus(needs.gpus)
    if needs.image:
        for engine in said["usable"]:
            yield from _image(engine, image_reference(needs.image))


def _any_engine(wanted: str, working: Sequence[str]) -> Finding:
    ok = bool(working) if wanted == "auto" else wanted in working
    detail = ", ".join(working) or "none works"
    step = "" if ok else "see above what each engine lacks"
    return Finding(
        subject="engine for work" if wanted == "auto" else f"engine for work: {wanted}",
        ok=ok,
        detail=detail if ok or wanted == "auto" else f"does not work; those that do: {detail}",
        next_step=step,
    )


def _gpus(asked: int) -> Finding:
    granted = granted_gpus()
    subject = "GPUs granted"
    if granted is None:
        step = (
            f"{ADMINISTRATOR} for GPUs as resources of the batch system (Slurm: GresTypes=gpu)"
            if asked
            else ""
        )
        detail = "CUDA_VISIBLE_DEVICES is not set, so work gets all GPUs of the node"
        return Finding(subject=subject, ok=None, detail=detail, next_step=step)
    ok = len(granted) >= asked
    step = (
        ""
        if ok
        else f"the job asks for {asked}: compare gpus_per_node with what a node of the partition "
        "has"
    )
    return Finding(subject=subject, ok=ok, detail=", ".join(granted) or "none", next_step=step)


def _image(engine: str, image: str) -> Iterator[Finding]:
    """Yield whether an engine has an image, and then whether its containers see the granted
    GPUs.
    """
    subject = f"{engine}: {image}"
    try:
        with open_runtime(engine) as runtime:
            if not runtime.images.exists(image):
                step = f"add images = [{image!r}] to [cluster]; nodes get it from the head or its "
                detail = "missing"
                yield Finding(subject=subject, ok=None, detail=detail, next_step=f"{step}registry")
                return
            yield Finding(subject=subject, ok=True, detail="present")
            if granted_gpus():
                yield _visible_gpus(runtime, image)
    except HyperRuntimeError as error:
        yield Finding(subject=subject, ok=False, detail=str(error))


def _visible_gpus(runtime: Runtime, image: str) -> Finding:
    """Return whether a container that asks for all GPUs sees those that are granted, and no
    others.
    """
    subject = f"{runtime.name}: GPUs visible inside"
    reason = f"`hyperrun doctor --gpu {shlex.quote(image)}` in a job finds the reason"
    try:
        devices = load_devices()
        kinds = [name for name in devices.names() if name.partition("=")[0].endswith("/gpu")]
        known = {
            node.path for device in devices.resolve(kinds) for node in device.edits.device_nodes
        }
        granted = gpu_devices(granted_gpus() or (), devices)
        expected = {node.path for device in granted for node in device.edits.device_nodes}
        with runtime.container(ContainerSpec(image=image, gpus="all")) as container:
            words = ["sh", "-c", _EXISTING, "sh", *sorted(known | expected)]
            seen = set(container.exec(words, timeout_s=_LOOK_S).check().stdout.decode().split())
    except UnsupportedOptionError as error:
        return Finding(
            subject=subject, ok=None, detail="none", next_step=f"{error.why}, if work needs GPUs"
        )
    except HyperRuntimeError as error:
        return Finding(subject=subject, ok=False, detail=str(error), next_step=reason)
    detail = (
        f"{', '.join(sorted(seen)) or 'none'}; granted: {', '.join(sorted(expected)) or 'none'}"
    )
    return Finding(
        subject=subject,
        ok=seen == expected,
        detail=detail,
        next_step="" if seen == expected else reason,
    )
