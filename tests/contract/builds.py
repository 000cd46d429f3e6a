"""An image that a test builds, uses in one container, and removes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hyperruntime as hr


@contextmanager
def built(
    runtime: hr.Runtime, reference: str, containerfile: Path, **options: Any
) -> Iterator[hr.Container]:
    """Yield a container of a new image."""
    runtime.images.build(reference, containerfile=containerfile, force=True, **options)
    try:
        with runtime.container(hr.ContainerSpec(image=reference)) as container:
            yield container
    finally:
        runtime.images.remove(reference)
