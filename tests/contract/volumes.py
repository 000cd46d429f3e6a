"""A check for engines that have volumes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import attrs

import hyperruntime as hr
from hyperruntime.host.owner import LABEL, OwnerIdentity
from hyperruntime.host.process import run_process


def expect_volumes_to_go(
    runtime: hr.Runtime, engine_command: Any, image: str, run_labelled: Callable[..., str]
) -> None:
    """Check that pruning and the owner's guard remove the volumes of the containers that they
    remove, and no others.
    """
    dead = attrs.evolve(OwnerIdentity.current(), pid=2**22 + 1)
    guarded = attrs.evolve(dead, token="guarded", pid=os.getpid())
    kept = run_labelled(image, {}, "--volume", "/data")
    names = [
        run_labelled(image, owner.to_labels(), "--volume", "/data") for owner in (dead, guarded)
    ]
    volumes = engine_command.volumes(*names)
    assert len(volumes) == 2
    runtime.prune()
    run_process(runtime._driver.cleanup_args(f"{LABEL}=guarded"))
    assert not set(names) & set(engine_command.containers())
    left = engine_command.all_volumes()
    assert not volumes & left
    assert engine_command.volumes(kept) <= left
