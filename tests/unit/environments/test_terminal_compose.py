"""The compose file of a terminal task: its service ``main``, without what Harbor sets by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperenvironment_terminal import Terminal
from hyperenvironment_terminal.load import load_tasks
from hyperruntime.errors import SpecError
from tests.unit.environments.test_terminal_tasks import Images, harbor, spec_of

HARBORS = """
x-note: ours
services:
  main:
    build: {context: "${CONTEXT_DIR}", dockerfile: Dockerfile.main}
    image: ${MAIN_IMAGE_NAME}
    command: ["sh", "-c", "sleep infinity"]
    environment: [MODE=compose, "OUT=${ENV_VERIFIER_LOGS_PATH}", SECRET]
    volumes: ["${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}", "${HOST_AGENT_LOGS_PATH}:${ENV_AGENT_LOGS_PATH}"]
    deploy: {resources: {limits: {cpus: "${CPUS}", memory: "${MEMORY}"}}}
    labels: {a: b}
    hostname: box
    working_dir: /srv
    mem_limit: 1g
    network_mode: none
"""


def compose(folder: Path, text: str) -> None:
    """Write the compose file of a task."""
    (folder / "environment" / "docker-compose.yaml").write_text(text)


def test_a_compose_file_with_the_service_main_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Harbor sets by itself is dropped; variables of the host need ``pass_env``; ``task.toml``
    comes first.
    """
    monkeypatch.setenv("SECRET", "of the host")
    folder = harbor(tmp_path / "one", environment__Dockerfile_main="FROM y:1\n")
    compose(folder, HARBORS)
    (folder / "task.toml").write_text("[environment]\nmemory_mb = 512\n")
    (task,) = load_tasks(str(folder))
    assert task.recipe is not None
    assert (task.recipe.name, task.workdir, task.internet) == ("Dockerfile.main", "/srv", False)
    assert (task.env, task.limits) == (
        {"MODE": "compose", "SECRET": "${SECRET}"}, {"memory_bytes": 512 * 1024**2},
    )  # fmt: skip
    with pytest.raises(SpecError, match="pass_env=SECRET"):
        Terminal(tasks=str(folder))
    assert (
        spec_of(Terminal(tasks=str(folder), pass_env=("SECRET",)), Images()).env["SECRET"]
        == "of the host"
    )


def test_only_docker_compose_yaml_defines_containers(tmp_path: Path) -> None:
    """``docker-compose.yml`` is a file of the image; a ready image of ``main`` is used if there is
    no Dockerfile.
    """
    (task,) = load_tasks(
        str(harbor(tmp_path / "one", environment__docker_compose_yml="services: {a: {}, b: {}}"))
    )
    assert (task.env, task.image) == ({}, "")
    ready = harbor(tmp_path / "two", environment__x="")
    (ready / "environment" / "docker-compose.yml").write_text("services: {a: {}, b: {}}")
    (ready / "environment" / "docker-compose.yaml").write_text(
        "services: {main: {image: 'me/it:1'}}"
    )
    assert load_tasks(str(ready))[0].image == "", "Harbor builds a Dockerfile that is there"
    (ready / "environment" / "Dockerfile").unlink()
    assert load_tasks(str(ready))[0].image == "me/it:1"


@pytest.mark.parametrize(
    "given",
    [
        "{TOKEN: , EMPTY: '', CPUS: , OUT: '${ENV_VERIFIER_LOGS_PATH}', MEMORY: '${MEMORY}', "
        "ALL: 'a=${CPUS}'}",
        "[TOKEN, 'EMPTY=', CPUS, 'OUT=${ENV_VERIFIER_LOGS_PATH}', 'MEMORY=${MEMORY}', "
        "'ALL=a=${CPUS}']",
    ],
)
def test_only_harbors_own_variables_are_dropped(tmp_path: Path, given: str) -> None:
    """A name without a value is the host's, an empty value is empty, and a value with more in it is
    kept.
    """
    folder = harbor(tmp_path / "one")
    compose(folder, f"services: {{main: {{environment: {given}}}}}")
    (task,) = load_tasks(str(folder))
    assert task.env == {"TOKEN": "${TOKEN}", "EMPTY": "", "ALL": "a=${CPUS}"}


@pytest.mark.parametrize("given", ["3", "{A: [1]}", "[[A]]"])
def test_variables_of_another_form_are_refused(tmp_path: Path, given: str) -> None:
    """The message names the file or the key."""
    folder = harbor(tmp_path / "one")
    compose(folder, f"services: {{main: {{environment: {given}}}}}")
    with pytest.raises(SpecError, match="environment"):
        load_tasks(str(folder))


def test_shared_memory_reaches_the_container_and_harmless_keys_pass(tmp_path: Path) -> None:
    """``shm_size`` is a limit of the task; labels and the like change nothing for one container."""
    folder = harbor(tmp_path / "one")
    compose(
        folder,
        "x-common: {a: b}\nservices: {main: {shm_size: 256m, labels: [a=b], x-mine: 1, "
        "hostname: box, platform: linux, volumes: []}}\nvolumes: {}\n",
    )
    assert spec_of(Terminal(tasks=str(folder)), Images()).limits.shm_bytes == 256 * 1024**2


def test_the_user_of_main_is_that_of_agent_and_tests(tmp_path: Path) -> None:
    """Unless ``task.toml`` names another one."""
    folder = harbor(tmp_path / "one", task_toml="[verifier]\nuser = 'root'")
    compose(folder, "services: {main: {user: '1000:1000'}}")
    (task,) = load_tasks(str(folder))
    assert (task.agent_user, task.tests_user) == ("1000:1000", "root")


def test_other_services_are_services_of_the_container(tmp_path: Path) -> None:
    """Their images are substituted and built like that of ``main``; the tests run beside them."""
    folder = harbor(tmp_path / "one")
    (folder / "environment" / "db").mkdir()
    (folder / "environment" / "db" / "Dockerfile").write_text("FROM y:1\n")
    compose(
        folder,
        "services:\n  main: {depends_on: [db, cache]}\n  cache: {image: 'redis:7', command: redis-server}\n"
        "  db: {build: '${CONTEXT_DIR}/db', environment: {MODE: '${MODE:-test}'}, depends_on: [main]}\n",
    )
    environment = Terminal(tasks=str(folder), substitute=("redis:7=localhost/redis:1",))
    spec = spec_of(environment, Images("localhost/redis:1"))
    cache, db = spec.services
    assert (spec.host_names, cache.image, cache.args) == (
        ("main",), "localhost/redis:1", ("redis-server",),
    )  # fmt: skip
    assert (db.image.partition(":")[0], db.env, db.after) == (
        "localhost/hyperruntime-task/one-db", {"MODE": "test"}, (),
    )  # fmt: skip
    assert environment._mode(load_tasks(str(folder))[0]) == "same"


def test_no_variable_of_the_host_reaches_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the host")
    folder = harbor(tmp_path / "one")
    compose(folder, "services: {main: {}, db: {image: x, environment: [SECRET]}}")
    with pytest.raises(SpecError, match="SECRET for 'db'"):
        load_tasks(str(folder))
    compose(folder, "services: {main: {}, db: {image: x, environment: {A: '$SECRET'}}}")
    with pytest.raises(SpecError, match="SECRET is not set"):
        load_tasks(str(folder))
