"""What a client of the service may ask for."""

from __future__ import annotations

import pytest

from hyperruntime.remote.service_errors import NotAllowedError
from hyperruntime.serve.models import NewContainer
from hyperruntime.serve.rules import ContainerRules

DIGEST = "sha256:" + "0" * 64
NAMES = [
    "base",
    "host",
    "debian:12",
    "localhost/hyperruntime/base:latest",
    "localhost:5000/a/b_c/d--e:V1.0_x",
    "docker.io/library/debian:bookworm-slim",
    "docker/compose:1",
    "oci/x:1",
    f"a/b@{DIGEST}",
    f"example.org/a:1@{DIGEST}",
]
PLACES = [
    "/",
    "/root",
    "./x",
    "../x",
    "x.sif",
    "a/b:1.sif",
    "x.sqfs",
    "a/../../b",
    "a//b",
    "dir:/etc",
    "oci:x",
    "oci:/x:1",
    "docker-archive:/root/x.tar",
    "docker-archive:x",
    "docker-daemon:a:1",
    "docker://a",
    "containers-storage:x",
    "sif:x",
    "tarball:/x",
]


@pytest.mark.parametrize("image", NAMES)
def test_an_image_is_chosen_by_its_name(image: str) -> None:
    assert (
        ContainerRules()
        .spec_of(NewContainer(image=image))
        .image.endswith(image.removeprefix("base"))
    )


@pytest.mark.parametrize("image", PLACES)
def test_an_image_is_no_path_and_no_transport(image: str) -> None:
    with pytest.raises(NotAllowedError, match="give the name of an image"):
        ContainerRules().spec_of(NewContainer(image=image))
