"""The one service of a compose file: what is honoured, and what is refused by name."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given as for_all
from hypothesis import strategies as st

from hyperruntime.adapters.compose import Service, read_compose, read_service
from hyperruntime.errors import HyperRuntimeError, SpecError, UnsupportedOptionError
from hyperruntime.spec import Ready

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
        ("{image: x}", "networks: {default: {driver: macvlan}}", "networks"),
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


SEVERAL = """
x-common: &common
  environment: {MODE: "${MODE:-test}", PRICE: "5$$"}
services:
  app:
    build: ./app
    command: sleep infinity
    x-default: true
    depends_on: [db, jobs]
  jobs:
    image: jobs:1
    depends_on:
      db: {condition: service_healthy}
      prepare: {condition: service_completed_successfully}
    networks: {default: {aliases: [worker]}}
  prepare:
    build: {context: prepare, dockerfile: D}
    command: migrate --all "a b"
    entrypoint: []
  db:
    <<: *common
    image: postgres:16
    hostname: store
    env_file: db.env
    user: 70
    tmpfs: /tmp:size=64m
    shm_size: 128m
    expose: ["5432"]
    volumes: [data:/var/lib/postgresql/data]
    healthcheck:
      test: [CMD-SHELL, "pg_isready -U $$USER"]
      interval: 2s
      timeout: 3s
      retries: 5
      start_period: 1m30s
volumes: {data: }
networks: {default: {internal: true}}
"""


def test_the_other_services_are_services_of_the_container(tmp_path: Path) -> None:
    """With their order, their readiness, their names, and the builds of their images."""
    (tmp_path / "db.env").write_text(
        "# of the database\nexport USER='me'\nMODE=file\n\nPLAIN=a # b\n"
    )
    (tmp_path / "compose.yaml").write_text(SEVERAL)
    found = read_compose(tmp_path / "compose.yaml", variables={})
    assert (found.fields["host_names"], found.fields["network"]) == (("app",), "none")
    assert found.context == tmp_path / "app"
    jobs, prepare, db = (one.fields for one in found.beside)
    assert (jobs["after"], jobs["aliases"]) == (("db", "prepare"), ("worker",))
    assert (prepare["args"], prepare["ready"]) == (
        ("migrate", "--all", "a b"), Ready(completed=True, timeout_s=600.0),
    )  # fmt: skip
    assert found.beside[1].dockerfile == tmp_path / "prepare/D"
    assert db["env"] == {"USER": "me", "MODE": "test", "PLAIN": "a", "PRICE": "5$"}
    assert (db["aliases"], db["user"], db["directories"]) == (
        ("store",), "70", ("/var/lib/postgresql/data",),
    )  # fmt: skip
    assert (db["limits"].tmpfs_bytes, db["limits"].shm_bytes) == (64 * 1024**2, 128 * 1024**2)
    check = ("/bin/sh", "-c", "pg_isready -U $USER")
    assert db["ready"] == Ready(command=check, interval_s=1.0, timeout_s=90 + 5 * (2 + 3))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("  db: {image: x}", "which of app, db is the container"),
        ("  default: {image: x}\n  db:\n    image: x\n    ports: ['1:1']", "ports: .*'db', line 6"),
        ("  default: {image: x}\n  db:\n    image: x\n    volumes: ['./a:/b']", "volumes: .*host.*line 6"),
        ("  default: {image: x}\n  db: {image: x, volumes: ['v:/b']}\n  e: {image: x, volumes: ['v:/c']}",
         "volumes: .*share no files"),
        ("  default: {image: x}\n  db: {image: x, depends_on: [e]}", "depends_on='e' .*one of"),
        ("  default: {image: x}\n  db: {image: x, depends_on: [e]}\n  e: {image: x, depends_on: [db]}", "circle"),
        ("  default: {image: x, depends_on: {db: {condition: service_healthy}}}\n  db: {image: x}",
         "depends_on: .*no healthcheck"),
        ("  default: {image: x}\n  db: {image: x, networks: [back]}", "networks: .*one network"),
        ("  default: {image: x}\n  db: {image: x, env_file: ../key}", "env_file=.*below the folder"),
        ("  default: {image: x}\n  db: {image: x, hostname: default}", "different name"),
        ("  default: {image: x}\n  db: {image: x, healthcheck: {test: [x]}}", "healthcheck.test"),
        ("  default: {image: x}\n  db: {image: x, tmpfs: /data}", "tmpfs: only /tmp"),
    ],
)  # fmt: skip
def test_what_services_cannot_have_is_refused_by_name_and_line(
    text: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "compose.yaml").write_text(f"services:\n  app: {{image: x}}\n{text}\n")
    with pytest.raises(HyperRuntimeError, match=says):
        read_compose(tmp_path / "compose.yaml")


@pytest.mark.parametrize(
    ("value", "found"),
    [("$A-${B}-$$A", "1-2-$A"), ("${C:-x}${C-y}${E:-z}${E-w}", "xyz"), ("${A:+set}${C+no}.", "set.")],
)  # fmt: skip
def test_variables_are_replaced(value: str, found: str) -> None:
    variables = {"A": "1", "B": "2", "E": ""}
    config = {"services": {"one": {"image": "x", "environment": {"V": value}}}}
    assert read_service(config, FOLDER, variables=variables).fields["env"] == {"V": found}


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
    | st.sampled_from(["$X", "${A", "a:b", "/a", "v:/a", "10s", "CMD", "none", "service:b", "/tmp:size=1m", "a"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from("a b test condition path context type aliases".split()), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
_KEYS = (
    "image build command entrypoint environment env_file depends_on healthcheck volumes user working_dir "
    "shm_size mem_limit cpus tmpfs networks network_mode hostname platform read_only pull_policy x-default"
)  # fmt: skip


@pytest.mark.hypothesis
@for_all(
    services=st.dictionaries(
        st.sampled_from(["default", "a", "b"]),
        st.dictionaries(st.sampled_from(_KEYS.split()), _VALUES, max_size=4),
        max_size=3,
    ),
    more=st.dictionaries(st.sampled_from(["networks", "volumes", "name"]), _VALUES, max_size=2),
)
def test_every_file_is_read_or_refused(services: dict[str, Any], more: dict[str, Any]) -> None:
    """Whatever a value is, nobody sees another error than those that name it."""
    with contextlib.suppress(HyperRuntimeError):
        read_service({"services": services, **more}, FOLDER, variables={})
