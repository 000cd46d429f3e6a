"""The names of existing images."""

from __future__ import annotations

from typing import cast

import pytest

from hyperruntime.driver import Images
from hyperruntime.errors import ImageNotFoundError
from hyperruntime.images.store import ImageStore


class Here:
    """A fake engine with images of these names."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def exists(self, reference: str) -> bool:
        return reference in self._names


def store(*names: str) -> ImageStore:
    return ImageStore(cast("Images", Here(*names)))


def test_a_name_without_a_registry_is_also_found_under_localhost() -> None:
    assert store("localhost/mine:latest").ensure("mine:latest") == "localhost/mine:latest"
    assert store("localhost/mine:latest", "mine:latest").ensure("mine:latest") == "mine:latest"


@pytest.mark.parametrize("name", ["example.org/mine:latest", "localhost/mine:latest", "team/mine:latest"])
def test_any_other_name_must_match_exactly(name: str) -> None:
    with pytest.raises(ImageNotFoundError):
        store(f"localhost/{name}").ensure(name)
