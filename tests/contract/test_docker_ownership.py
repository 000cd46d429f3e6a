"""Docker's volumes go with the containers that they are of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import hyperruntime as hr
from tests.contract.volumes import expect_volumes_to_go

pytestmark = pytest.mark.engine


def test_prune_takes_the_volumes_of_what_it_removes(
    runtime: hr.Runtime, engine_command: Any, busybox_image: str, run_labelled: Callable[..., str]
) -> None:
    expect_volumes_to_go(runtime, engine_command, busybox_image, run_labelled)
