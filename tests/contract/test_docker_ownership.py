"""Docker's volumes are removed with their containers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import hyperruntime as hr
from tests.contract.volumes import expect_volumes_to_go

pytestmark = pytest.mark.engine


def test_prune_removes_the_volumes_of_removed_containers(
    runtime: hr.Runtime, engine_command: Any, busybox_image: str, run_labelled: Callable[..., str]
) -> None:
    expect_volumes_to_go(runtime, engine_command, busybox_image, run_labelled)
