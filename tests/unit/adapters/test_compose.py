"""The one service of a compose file: what is honoured, and what is refused by name."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest
import yaml

from hyperruntime.adapters.compose import Service, read_service
from hyperruntime.errors import SpecError, UnsupportedOptionError

FOLDER = Path("/a folder")


def read(service: str, rest: str = "") -> Service:
    return read_service(yaml.safe_load(f"services: {{one: {service}}}\n{rest}"), FOLDER)


@pytest.mark.parametrize(
    "keys",
    ["labels: {a: b}", "x-foo: 1", "hostname: h", "volumes: []", "ports: []", "depends_on: {}", "container_name: c",
     "logging: {driver: none}", "expose: ['80']", "stop_signal: SIGINT", "annotations: [a=b]"],
)  # fmt: skip
def test_keys_that_change_nothing_for_one_container_are_accepted(keys: str) -> None:
    assert read(f"{{image: x, {keys}}}").fields == read("{image: x}").fields


def test_an_image_of_another_processor_is_refused() -> None:
    """No engine here emulates one."""
    here, other = ("amd64", "arm64") if platform.machine() == "x86_64" else ("arm64", "amd64")
    assert read(f"{{image: x, platform: linux/{here}}}").fields["image"] == "x"
    with pytest.raises(UnsupportedOptionError, match=f"platform.*not linux/{other}"):
        read(f"{{image: x, platform: linux/{other}}}")


def test_keys_of_a_service_are_fields_of_a_container() -> None:
    found = read(
        "{image: x, mem_limit: 512m, shm_size: 1gb, cpus: 1.5, user: '7', read_only: true, "
        "working_dir: /w, command: sleep}"
    )
    assert found.fields == {
        "image": "x",
        "limits": {"memory_bytes": 512 * 1024**2, "shm_bytes": 1024**3, "cpus": 1.5},
        "user": "7",
        "read_only_rootfs": True,
        "workdir": "/w",
        "network": "bridge",
        "pull": "missing",
        "env": {},
    }


@pytest.mark.parametrize(
    "given", ["[HERE, GONE, EMPTY=, SET=a=b]", "{HERE: , GONE: null, EMPTY: '', SET: a=b}"]
)
def test_a_variable_without_a_value_has_the_value_of_this_process(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERE", "of the host")
    monkeypatch.setenv("EMPTY", "not this")
    monkeypatch.delenv("GONE", raising=False)
    env = read(f"{{image: x, environment: {given}}}").fields["env"]
    assert env == {"HERE": "of the host", "EMPTY": "", "SET": "a=b"}


@pytest.mark.parametrize(
    ("build", "dockerfile", "context", "is_cached"),
    [
        (".", FOLDER / "Dockerfile", FOLDER, True),
        ("{context: sub, dockerfile: D}", FOLDER / "sub/D", FOLDER / "sub", True),
        ("{context: /else, no_cache: true}", Path("/else/Dockerfile"), Path("/else"), False),
        ("{no_cache: false, pull: false}", FOLDER / "Dockerfile", FOLDER, True),
    ],
)
def test_a_build_has_its_file_its_context_and_its_cache(
    build: str, dockerfile: Path, context: Path, is_cached: bool
) -> None:
    found = read(f"{{build: {build}}}")
    assert (found.dockerfile, found.context, found.is_cached) == (dockerfile, context, is_cached)


@pytest.mark.parametrize(
    ("service", "rest", "word"),
    [
        ("{image: x}, two: {image: y}", "", "services"),
        ("{image: x}", "networks: {default: {internal: true}}", "networks"),
        ("{image: x, privileged: true}", "", "privileged"),
        ("{image: x, volumes: ['/:/host']}", "", "volumes"),
        ("{build: {context: ., pull: true}}", "", r"build\.pull"),
        ("{build: {context: ., target: last}}", "", r"build\.target"),
        ("{image: 'x:$TAG'}", "", "image"),
        ("{image: x, environment: ['A=${B}']}", "", "environment"),
    ],
)
def test_what_would_make_another_container_is_refused_by_name(
    service: str, rest: str, word: str
) -> None:
    with pytest.raises(UnsupportedOptionError, match=f"cannot honour {word}: "):
        read(service, rest)


@pytest.mark.parametrize(
    "main",
    [
        "command: tail -f /dev/null",
        "command: [sleep, infinity]",
        "command: /bin/bash -c 'exec sleep 1d'",
        "entrypoint: [/bin/sh, -c], command: [tail -F /dev/null]",
        "entrypoint: [], command: null",
        "command: bash, init: true, tty: true, stdin_open: true, restart: always",
    ],
)
def test_a_main_program_that_only_waits_is_not_needed(main: str) -> None:
    assert read(f"{{image: x, {main}}}").fields == read("{image: x}").fields


@pytest.mark.parametrize(
    ("main", "word"),
    [
        ("entrypoint: /start-server", "entrypoint"),
        ("entrypoint: [/start], command: sleep 7", "entrypoint"),
        ("command: python3 -m http.server", "command"),
        ("command: sh -c 'sleep 1; exec server'", "command"),
        ("command: sh -c 'server & sleep infinity'", "command"),
        ("command: bash start.sh", "command"),
        ("command: tail -f /var/log/x /dev/null", "command"),
        ("command: 'sleep $(server)'", "command"),
    ],
)
def test_a_main_program_that_does_something_is_refused(main: str, word: str) -> None:
    with pytest.raises(
        UnsupportedOptionError, match=f"cannot honour {word}: .* start the program in the sandbox"
    ):
        read(f"{{image: x, {main}}}")


@pytest.mark.parametrize("value", ["7", "yes"])
def test_variables_in_another_form_are_an_error(value: Any) -> None:
    with pytest.raises(SpecError, match="environment"):
        read(f"{{image: x, environment: {value}}}")
