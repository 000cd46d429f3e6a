"""Names of images that are here."""

from __future__ import annotations

from typing import cast

import pytest

from hyperruntime.driver import Images
from hyperruntime.errors import ImageNotFoundError
from hyperruntime.images.store import ImageStore


class Here:
    """Images of these names."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def exists(self, reference: str) -> bool:
        return reference in self._names


def store(*names: str) -> ImageStore:
    return ImageStore(cast("Images", Here(*names)))


def test_a_name_without_a_registry_is_found_where_podman_builds_it() -> None:
    assert store("localhost/mine:latest").ensure("mine:latest") == "localhost/mine:latest"
    assert store("localhost/mine:latest", "mine:latest").ensure("mine:latest") == "mine:latest"


@pytest.mark.parametrize("name", ["example.org/mine:latest", "localhost/mine:latest", "team/mine:latest"])
def test_any_other_name_is_taken_as_it_is(name: str) -> None:
    with pytest.raises(ImageNotFoundError):
        store(f"localhost/{name}").ensure(name)
