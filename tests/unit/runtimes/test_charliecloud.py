"""The job that starts a container of Charliecloud."""

from __future__ import annotations

from typing import Any

import pytest

from hyperruntime.driver import Launch
from hyperruntime.layers.images import ImageSource
from hyperruntime.layers.namespace import Job
from hyperruntime.spec import ContainerSpec, Mount
from hyperruntime_charliecloud.args import make_job


def job(**fields: Any) -> Job:
    launch = Launch(
        spec=ContainerSpec(image="image", **fields),
        name="name",
        labels={},
        exchange=Mount(source="/given", target="/run/hyperruntime"),
        private_dir="/private",
    )
    source = ImageSource(files="/image", env={"LD_PRELOAD": "/lib/x.so"}, workdir="/work")
    return make_job(launch, source, "/files", None, "/filter")


@pytest.mark.parametrize(
    ("fields", "word", "has_it"),
    [
        ({}, "--net", True),
        ({"network": "host"}, "--net", False),
        ({}, "--write", True),
        ({"read_only_rootfs": True}, "--write", False),
        ({"env": {"KEY": "secret"}}, "secret", False),
        ({"workdir": "/else"}, "/work", False),
    ],
)
def test_a_field_becomes_words(fields: dict[str, Any], word: str, has_it: bool) -> None:
    words = job(**fields).args
    assert (word in words or f'"{word}"' in " ".join(words)) == has_it


def test_variables_of_the_image_are_not_those_of_programs_on_the_host() -> None:
    assert set(job().env) == {"PATH", "USER", "HOME"}


def test_all_paths_of_mounts_are_resolved_inside_the_image() -> None:
    mounts = (Mount(source="/a", target="/mnt/a"), Mount(source="/b", target="/tmp/"))
    made = job(mounts=mounts, network="none")
    resolved = [made.args[place] for place in made.inside]
    assert resolved[-4:] == ["/etc/hosts", "/run/hyperruntime", "/mnt/a", "/tmp/"]
    assert {"/dev", "/proc", "/sys", "/tmp", "/work"} <= set(resolved)
    assert made.args[made.inside[-1] :] == ("/tmp/",)
