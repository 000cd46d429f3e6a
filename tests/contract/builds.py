"""An image that a test builds, uses in one container, and removes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.errors import UnsupportedOptionError


@contextmanager
def built(
    runtime: hr.Runtime, reference: str, containerfile: Path, **options: Any
) -> Iterator[hr.Container]:
    """Yield a container of a new image; bubblewrap must refuse the build, and skips the test."""
    try:
        runtime.images.build(reference, containerfile=containerfile, force=True, **options)
    except UnsupportedOptionError:
        assert runtime.name == "bubblewrap"
        pytest.skip("it builds no images; this has checked that it refuses the build by name")
    try:
        with runtime.container(hr.ContainerSpec(image=reference)) as container:
            yield container
    finally:
        runtime.images.remove(reference)
