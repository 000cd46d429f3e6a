"""Terminal tasks from directories and rows, and the containers that they request."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hyperenvironment_terminal import Terminal
from hyperenvironment_terminal.load import load_tasks
from hyperruntime.errors import ImageNotFoundError, SpecError
from hyperruntime.images import build_inputs
from hyperruntime.images.store import ImageStore
from hyperruntime.network.egress import Egress, Network
from hyperruntime.rollout.loading import load_environment
from hyperruntime.spec import ContainerSpec, Limits

SETTINGS = """
version = "1.0"
[metadata]
difficulty = "easy"
[metadata.hyperruntime]
verify = "same"
[agent]
timeout_sec = 90.5
[verifier]
timeout_sec = 30
env = { KEY = "${KEY:-none}" }
[environment]
cpus = 2
memory_mb = 512
storage = "1G"
gpus = 1
allow_internet = true
[environment.env]
MODE = "test"
"""


class Images:
    """A fake engine's images; records builds and pulls."""

    def __init__(self, *known: str) -> None:
        self.known, self.built, self.pulled = set(known), list[tuple[str, str]](), list[str]()

    def exists(self, reference: str) -> bool:
        return reference in self.known

    def build(self, context: Path, reference: str, *, containerfile: Path, **_: Any) -> str:
        self.built.append((reference, containerfile.read_text()))
        self.known.add(reference)
        return "id"

    def pull(self, reference: str, *, on_output: Callable[[str], None]) -> str:
        self.pulled.append(reference)
        return "id"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def make(folder: Path, files: Mapping[str, str]) -> Path:
    """Write these files below a folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def harbor(folder: Path, **more: str) -> Path:
    """Write a Harbor task into a folder."""
    files = {
        "instruction.md": "Do it.\n",
        "tests/test.sh": "true",
        "environment/Dockerfile": "FROM x:1\nWORKDIR /a\n",
    }
    return make(
        folder,
        {
            **files,
            **{name.replace("__", "/").replace("_", "."): text for name, text in more.items()},
        },
    )


def spec_of(
    environment: Terminal, images: Images, base: ContainerSpec | None = None
) -> ContainerSpec:
    """Return the container spec of an environment's first task."""
    item = next(iter(environment.items()))
    return environment.spec(item, base or ContainerSpec(image="base"), ImageStore(images))  # type: ignore[arg-type]


def archive(**files: str) -> str:
    """Return a gzipped tar archive as base64 text."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name.replace("__", "/").replace("_", "."))
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return base64.b64encode(buffer.getvalue()).decode()


def test_a_harbor_task_is_read_completely(tmp_path: Path) -> None:
    """T4: times, resources, variables and the workdir; a benchmark's canary text is removed from
    the instruction.
    """
    text = "<!-- a canary string -->\n# canary GUID 1\n\n# Title\nDo it.\n"
    (task,) = load_tasks(str(harbor(tmp_path / "one", task_toml=SETTINGS, instruction_md=text)))
    assert (task.id, task.instruction, task.workdir) == ("one", "# Title\nDo it.", "")
    assert (task.agent_timeout_s, task.verifier_timeout_s, task.verify) == (90.5, 30, "same")
    assert task.limits == {"cpus": 2, "memory_bytes": 512 * 1024**2, "disk_bytes": 1024**3}
    assert (task.gpus, task.internet) == (1, True)
    environment = Terminal(tasks=str(tmp_path))
    assert environment.time_limit_s(next(iter(environment.items()))) == 90.5
    assert (task.env, task.verifier_env) == ({"MODE": "test"}, {"KEY": "${KEY:-none}"})


def test_an_endless_terminals_task_needs_no_settings(tmp_path: Path) -> None:
    """T4: an instruction, a definition file, and a test of the final state."""
    files = {
        "instruction.md": "Do it.",
        "environment/container.def": "Bootstrap: docker\nFrom: ubuntu:22.04\n%post\n mkdir /home/user\n",
        "tests/test_final_state.py": "def test(): pass",
    }
    (task,) = load_tasks(str(make(tmp_path / "task 1", files)))
    assert (task.id, task.workdir, task.uses_pytest) == ("task-1", "/home/user", True)


@pytest.mark.parametrize(
    ("line", "workdir"),
    [
        ("mkdir -p /home/user/app", "/home/user"),
        ("chmod -R 777 /home/user", "/home/user"),
        ("mkdir /home/username /home/user-x", "/"),
        ("# no /home/user", "/"),
    ],
)
def test_a_task_begins_in_home_user_if_its_definition_file_makes_it(
    tmp_path: Path, line: str, workdir: str
) -> None:
    files = {
        "instruction.md": "Do it.",
        "environment/container.def": f"Bootstrap: docker\nFrom: ubuntu:22.04\n%post\n {line}\n",
        "tests/test_final_state.py": "def test(): pass",
    }
    (task,) = load_tasks(str(make(tmp_path / "task", files)))
    assert task.workdir == workdir


def test_task_directories_are_found_recursively(tmp_path: Path) -> None:
    """In the order of their names, without links and hidden directories."""
    for name in ("b/one", "a", "b/.hidden"):
        harbor(tmp_path / name)
    (tmp_path / "c").symlink_to(tmp_path / "a")
    assert [task.id for task in load_tasks(str(tmp_path))] == ["a", "one"]
    harbor(tmp_path / "d" / "one")
    with pytest.raises(SpecError, match="twice"):
        load_tasks(str(tmp_path))


# A few lines that stand for 9 ** 9 values.
_ALIASES = "x-0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"x-{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]\n" for number in range(1, 9)
)
_MERGED = "x-0: &a0 {k: x}\n" + "".join(
    f"x-{number}: &a{number} {{<<: [{', '.join([f'*a{number - 1}'] * 9)}]}}\n"
    for number in range(1, 9)
)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"task_toml": "[environment]\ncpus = 'two'"}, "cpus"),
        ({"task_toml": "x = ["}, "TOML"),
        ({"task_toml": "[agent]\nuser = 'ann lee'"}, "agent.user"),
        ({"task_toml": "[verifier]\nuser = -1"}, "verifier.user"),
        ({"task_toml": "[agent]\nuser = true"}, "agent.user"),
        (
            {"task_toml": "[environment]\nallowed_hosts = ['https://x']"},
            "environment.allowed_hosts",
        ),
        ({"task_toml": "[agent]\nallowed_hosts = ['localhost']"}, "agent.allowed_hosts"),
        ({"task_toml": "[verifier]\nenvironment_mode = 'separate'"}, "environment_mode"),
        ({"task_toml": "[verifier.environment]\ncpus = 2"}, "environment_mode"),
        ({"task_toml": "[[steps]]\nname = 'one'"}, "several steps"),
        ({"task_toml": "[metadata.hyperruntime]\nverify = 'never'"}, "verify"),
        (
            {
                "environment__docker-compose_yaml": "services: {main: {}, db: {image: x, ports: [1]}}"
            },
            "yaml.*ports: .*service 'db'",
        ),
        (
            {"environment__docker-compose_yaml": "services: {db: {build: ../..}}"},
            "yaml.*build.*'db' must be in environment/",
        ),
        (
            {"environment__docker-compose_yaml": "services: {main: {privileged: true}}"},
            "yaml.*privileged of.*'main'",
        ),
        (
            {"environment__docker-compose_yaml": "services: {main: {volumes: ['/etc:/etc']}}"},
            "volumes of",
        ),
        (
            {"environment__docker-compose_yaml": "services: {main: {user: a b}}"},
            "user of the service 'main'.*'a b'",
        ),
        (
            {"environment__docker-compose_yaml": "services: {main: {build: ../..}}"},
            "build of.*environment/",
        ),
        ({"environment__docker-compose_yaml": "services: ["}, "valid compose file"),
        (
            {"environment__docker-compose_yaml": _ALIASES + "services: {main: {environment: *a8}}"},
            "more than 100000",
        ),
        (
            {"environment__docker-compose_yaml": _MERGED + "services: {main: {labels: *a8}}"},
            "more than 100000",
        ),
        (
            {"environment__docker-compose_yaml": "services: {main: &a {environment: [*a]}}"},
            "a part of itself",
        ),
        ({"environment__docker-compose_yaml": "services: " + "[" * 500}, "valid compose file"),
        ({"environment__docker-compose_yaml": "include: [other.yaml]"}, "without include"),
        ({"task_toml": "[environment]\ngpus = inf"}, "gpus"),
    ],
)
def test_unsupported_settings_are_rejected(
    tmp_path: Path, files: dict[str, str], says: str
) -> None:
    """The error names the setting."""
    with pytest.raises(SpecError, match=says):
        load_tasks(str(harbor(tmp_path / "one", **files)))


def test_old_tasks_and_missing_directories_are_rejected(tmp_path: Path) -> None:
    """A Terminal-Bench 1 task has its instruction in task.yaml."""
    make(tmp_path / "old", {"task.yaml": "instruction: x"})
    with pytest.raises(SpecError, match="Terminal-Bench 1"):
        load_tasks(str(tmp_path))
    with pytest.raises(SpecError, match="builtin"):
        load_tasks(str(tmp_path / "none"))
    with pytest.raises(SpecError, match=r"tests/test\.sh"):
        load_tasks(str(make(tmp_path / "x", {"instruction.md": "", "environment/Dockerfile": ""})))


def test_tasks_are_read_from_rows(tmp_path: Path) -> None:
    """T4: an image or an archive with a Dockerfile; tests as an archive, a script, or both."""
    rows = [
        {
            "task_name": "ready", "instruction": "Do.", "docker_image": "me/it:1", "test_sh": "echo 1",
            "agent_timeout_sec": 60, "memory_mb": 256, "difficulty": "easy",
        },
        {
            "id": "made", "instruction": "Do.", "solution_sh": "true", "test_sh": "echo 2",
            "environment_tar": archive(environment__Dockerfile="FROM y:1", environment__data_txt="d"),
            "tests_tar": archive(check_py="pass"),
        },
    ]  # fmt: skip
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    ready, made = load_tasks(str(path))
    assert (ready.id, ready.image, ready.agent_timeout_s, ready.workdir) == (
        "ready",
        "me/it:1",
        60,
        "",
    )
    assert ready.limits == {"memory_bytes": 256 * 1024**2}
    assert made.recipe is not None
    assert made.recipe.with_name("data.txt").read_text() == "d"
    assert sorted(p.name for p in made.tests.iterdir()) == ["check.py", "test.sh"]
    assert (made.tests / "test.sh").read_text() == "echo 2"
    assert made.solution is not None
    assert load_tasks(str(path)) == (ready, made), (
        "a second call must read the same tasks from the cache"
    )


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("[]", "JSON object"),
        ('{"docker_image": "x", "test_sh": "y"}', "instruction"),
        ('{"instruction": "x", "docker_image": "x", "tests_tar": "no tar"}', "tests_tar"),
        ('{"instruction": "x", "docker_image": "x", "test_sh": "y", "cpus": ["1"]}', "cpus"),
    ],
)
def test_a_malformed_row_is_rejected(tmp_path: Path, row: str, says: str) -> None:
    """The error names the row and the field."""
    (tmp_path / "rows.jsonl").write_text(row)
    with pytest.raises(SpecError, match=rf"rows\.jsonl:1.*{says}|rows\.jsonl:1: {says}"):
        load_tasks(str(tmp_path / "rows.jsonl"))


def test_an_archive_of_a_row_cannot_write_outside_its_directory(tmp_path: Path) -> None:
    """Rows are data from strangers."""
    row = {
        "instruction": "x",
        "docker_image": "x",
        "test_sh": "y",
        "tests_tar": archive(__________escaped="x"),
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with pytest.raises(SpecError, match="plain files"):
        load_tasks(str(tmp_path / "rows.jsonl"))


def test_a_container_has_the_settings_of_its_task(tmp_path: Path) -> None:
    """Limits, GPUs, network and variables; its image is built once, and again after a change of its
    files.
    """
    settings = SETTINGS.replace("allow_internet = true", 'allow_internet = false\nworkdir = "/a"')
    folder = harbor(tmp_path / "one", task_toml=settings, environment__a_txt="1")
    images, base = (
        Images(),
        ContainerSpec(image="base", network="host", env={"A": "1"}, limits=Limits(pids=99)),
    )
    spec = spec_of(Terminal(tasks=str(folder)), images, base)
    assert (spec.network, spec.workdir, spec.gpus, dict(spec.env)) == (
        "none",
        "/a",
        "auto:1",
        {"A": "1", "MODE": "test"},
    )
    assert spec.limits == Limits(pids=99, cpus=2, memory_bytes=512 * 1024**2, disk_bytes=1024**3)
    assert spec_of(Terminal(tasks=str(folder)), images, base) == spec
    assert [reference for reference, _ in images.built] == [spec.image]
    (folder / "environment" / "a.txt").write_text("2")
    assert spec_of(Terminal(tasks=str(folder)), images, base).image != spec.image
    plain = spec_of(Terminal(tasks=str(folder), resources="base"), images, base)
    assert (plain.limits, plain.gpus) == (base.limits, None)


def test_an_image_that_a_release_with_another_translation_built_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, images = harbor(tmp_path / "one"), Images()
    before = spec_of(Terminal(tasks=str(folder)), images).image
    monkeypatch.setattr(build_inputs, "TRANSLATION", build_inputs.TRANSLATION + 1)
    after = spec_of(Terminal(tasks=str(folder)), images).image
    assert [reference for reference, _ in images.built] == [before, after]
    assert before != after


LISTED = "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['pypi.org', '*.a.org']\n"


@pytest.mark.parametrize(
    ("run", "allow"),
    [
        ("host", ("pypi.org", "*.a.org")),
        (Egress(allow=("*",), limit_bytes=9), ("pypi.org", "*.a.org")),
        (Egress(allow=("pypi.org", "*.a.org", "b.org")), ("pypi.org", "*.a.org")),
    ],
)
def test_a_task_that_lists_hosts_gets_these_of_the_run(
    run: Network | Egress, allow: tuple[str, ...], tmp_path: Path
) -> None:
    """Its list is its network, with the limits of the run's; the tests have the same one."""
    environment = Terminal(tasks=str(harbor(tmp_path / "one", task_toml=LISTED)))
    found = spec_of(environment, Images(), ContainerSpec(image="base", network=run)).network
    assert isinstance(found, Egress)
    assert found.allow == allow
    assert found.limit_bytes == getattr(run, "limit_bytes", None)


@pytest.mark.parametrize("run", ["none", Egress(allow=("pypi.org",)), Egress(allow=("a.org",))])
def test_a_list_that_the_run_does_not_have_is_refused_by_name(
    run: Network | Egress, tmp_path: Path
) -> None:
    environment = Terminal(tasks=str(harbor(tmp_path / "one", task_toml=LISTED)))
    with pytest.raises(SpecError, match=r"--allow NAME.*one \(its task.toml lists pypi.org, \*\.a"):
        spec_of(environment, Images(), ContainerSpec(image="base", network=run))


def test_a_task_that_needs_the_internet_gets_it_only_on_request(tmp_path: Path) -> None:
    """Otherwise it is rejected, unless the user chooses to run it without."""
    folder = str(harbor(tmp_path / "one", task_toml="[environment]\nallow_internet = true\n"))
    with pytest.raises(SpecError, match="internet=base"):
        spec_of(Terminal(tasks=folder), Images())
    assert (
        spec_of(
            Terminal(tasks=folder), Images(), ContainerSpec(image="x", network="bridge")
        ).network
        == "bridge"
    )
    assert spec_of(Terminal(tasks=folder, internet="base"), Images()).network == "none"


@pytest.mark.parametrize(
    ("settings", "agent", "tests"),
    [
        ("", None, None),
        ("[environment]\nallow_internet = false", False, False),
        ("[environment]\nnetwork_mode = 'public'", True, True),
        (
            "[environment]\nnetwork_mode = 'no-network'\n[verifier]\nnetwork_mode = 'public'",
            False,
            True,
        ),
        ("[environment]\nallow_internet = true\n[agent]\nnetwork_mode = 'no-network'", False, True),
    ],
)
def test_each_phase_of_a_task_has_its_own_network(
    tmp_path: Path, settings: str, agent: bool | None, tests: bool | None
) -> None:
    """``[agent]`` and ``[verifier]`` override ``[environment]``; the tests of another network need
    a container.
    """
    (task,) = load_tasks(str(harbor(tmp_path / "one", task_toml=settings)))
    assert (task.internet, task.tests_internet) == (agent, tests)
    base = ContainerSpec(image="x", network="bridge")
    if agent is False and tests:
        with pytest.raises(SpecError, match="another network"):
            spec_of(Terminal(tasks=str(tmp_path), verify="same"), Images(), base)
    assert spec_of(Terminal(tasks=str(tmp_path)), Images(), base).network == (
        "none" if agent is False else "bridge"
    )


def test_a_run_without_network_names_all_tasks_that_need_one(tmp_path: Path) -> None:
    """Before any container starts: what their task.toml says, or what their test.sh downloads."""
    download = (
        "#!/bin/bash\n# apt-get\napt-get update\ncurl -LsSf https://x/install.sh | sh\nuvx "
        "pytest /tests/a.py\n"
    )
    here = "curl -s http://localhost:8000/ > out\ngit -C /app log\npip list\n"
    harbor(
        tmp_path / "downloads",
        tests__test_sh=download,
        task_toml="[environment]\ncpus = 2\nmemory_mb = 4096\n",
    )
    harbor(tmp_path / "says-so", task_toml="[environment]\nallow_internet = true\n")
    harbor(
        tmp_path / "says-no",
        tests__test_sh=download,
        task_toml="[environment]\nallow_internet = false\n",
    )
    harbor(tmp_path / "looks", tests__test_sh=here)
    environment = Terminal(tasks=str(tmp_path))
    items = list(environment.items())
    with pytest.raises(SpecError) as caught:
        environment.check_items(items, ContainerSpec(image="x"))
    assert (
        "2 tasks need the internet: downloads (its test.sh runs apt-get, curl, uvx), says-so ("
        in str(caught.value)
    )
    needs = {item.id: environment.needs(item) for item in items}
    assert (
        needs["downloads"]
        == "internet (its test.sh runs apt-get, curl, uvx), 2 cpus, 4096 MiB memory"
    )
    assert (needs["says-no"], needs["looks"]) == ("no internet", "")
    environment.check_items(items, ContainerSpec(image="x", network="bridge"))
    Terminal(tasks=str(tmp_path), internet="base").check_items(items, ContainerSpec(image="x"))


def test_variables_of_the_host_are_passed_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that needs a key is rejected unless the user allows it."""
    monkeypatch.setenv("MY_KEY", "secret")
    folder = str(
        harbor(
            tmp_path / "one",
            task_toml='[environment.env]\nK = "${MY_KEY}"\nD = "${MY_KEY:-none}"\n',
        )
    )
    with pytest.raises(SpecError, match="pass_env=MY_KEY"):
        spec_of(Terminal(tasks=folder), Images())
    assert dict(spec_of(Terminal(tasks=folder, pass_env=("MY_KEY",)), Images()).env) == {
        "K": "secret",
        "D": "secret",
    }


def test_missing_images_are_pulled_only_on_request(tmp_path: Path) -> None:
    """Another image can be used in their place."""
    folder = harbor(tmp_path / "one", task_toml='[environment]\ndocker_image = "me/it:1"\n')
    with pytest.raises(ImageNotFoundError, match="image pull"):
        spec_of(Terminal(tasks=str(folder)), Images())
    images = Images()
    assert spec_of(Terminal(tasks=str(folder), pull=True), images).image == "me/it:1"
    assert images.pulled == ["me/it:1"]
    here = Terminal(tasks=str(folder), substitute=("me/it:1=localhost/mine",))
    assert spec_of(here, Images("localhost/mine")).image == "localhost/mine"


def test_base_images_can_be_replaced(tmp_path: Path) -> None:
    """In Containerfiles and in definition files; an existing local base is not pulled from a
    registry.
    """
    environment = Terminal(tasks=str(harbor(tmp_path / "one")), substitute=("x:1=localhost/mine",))
    images = Images()
    spec_of(environment, images)
    assert images.built[0][1] == "FROM localhost/mine\nWORKDIR /a\n"
    definition = {"environment__container_def": "Bootstrap: docker\nFrom: me/it\n%post\n true\n"}
    images = Images("me/it")
    spec_of(Terminal(tasks=str(harbor(tmp_path / "two", **definition))), images)
    assert images.built[0][1].startswith("FROM me/it AS "), (
        "the local image must be used, not docker.io/me/it"
    )


@pytest.mark.parametrize(
    "line", ["%setup\n touch /x", "%files\n ../../secret /x", "%files\n /etc/passwd /x"]
)
def test_a_definition_cannot_run_commands_or_read_files_on_the_host(
    tmp_path: Path, line: str
) -> None:
    """It is rejected before any engine reads it."""
    (tmp_path / "secret").write_text("key")
    definition = f"Bootstrap: docker\nFrom: me/it\n{line}\n"
    folder = harbor(tmp_path / "one", environment__container_def=definition)
    images = Images("me/it")
    with pytest.raises(SpecError, match="definition file"):
        spec_of(Terminal(tasks=str(folder)), images)
    assert not images.built


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("instruction.md", b"caf\xe9", r"instruction\.md.*UTF-8; its byte 3"),
        ("task.toml", b"# caf\xe9", r"task\.toml.*UTF-8"),
        ("environment/docker-compose.yaml", b"# caf\xe9", r"docker-compose\.yaml.*UTF-8"),
        ("environment/container.def", b"# caf\xe9", r"container\.def.*UTF-8"),
        ("environment/container.def", b"Bootstrap: docker\r\nFrom: x\r\n", r"container\.def.*CRLF"),
        ("tests/test.sh", b"#!/bin/bash\r\ntrue\r\n", r"test\.sh.*CRLF"),
    ],
)
def test_a_file_with_odd_bytes_is_refused_by_name(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    """The error names the file, and does not blame the package."""
    folder = harbor(tmp_path / "one", environment__container_def="Bootstrap: docker\nFrom: x\n")
    (folder / name).write_bytes(content)
    with pytest.raises(SpecError, match=says):
        load_environment("terminal", {"tasks": str(folder), "unsupported": "fail"})


@pytest.mark.parametrize("name", ["instruction.md", "task.toml", "environment/docker-compose.yaml"])
def test_a_file_of_a_task_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    """A task of somebody else would show a private file of the host to the model."""
    folder = harbor(tmp_path / "one", environment__container_def="Bootstrap: docker\nFrom: x\n")
    (tmp_path / "private").write_text("a secret of the host")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "private")
    with pytest.raises(SpecError, match=r"symbolic link") as refused:
        load_environment("terminal", {"tasks": str(folder), "unsupported": "fail"})
    assert "a secret of the host" not in str(refused.value)


def test_a_row_with_odd_bytes_is_refused_by_its_line(tmp_path: Path) -> None:
    """A byte that is not UTF-8, and text that no file can hold."""
    rows = tmp_path / "rows.jsonl"
    for line in (
        b'{"instruction": "caf\xe9"}',
        b'{"instruction": "\\ud800", "docker_image": "x", "test_sh": "y"}',
    ):
        rows.write_bytes(line)
        with pytest.raises(SpecError, match=r"rows\.jsonl:1"):
            load_environment("terminal", {"tasks": str(rows), "unsupported": "fail"})


def test_the_bytes_of_a_dockerfile_reach_the_build(tmp_path: Path) -> None:
    """Also those that are not UTF-8, and line ends in a here-document; byte order marks elsewhere
    are skipped.
    """

    class Bytes(Images):
        def build(self, context: Path, reference: str, *, containerfile: Path, **_: Any) -> str:
            self.seen = containerfile.read_bytes()
            return super().build(context, reference, containerfile=context / "plain", **_)

    text = b"FROM x:1\n# caf\xe9\nCOPY <<'EOF' /f\na\r\nEOF\n"
    folder = harbor(tmp_path / "one", environment__plain="")
    (folder / "environment" / "Dockerfile").write_bytes(text)
    (folder / "instruction.md").write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")
    (folder / "task.toml").write_bytes(b"\xef\xbb\xbf[agent]\r\ntimeout_sec = 7\r\n")
    images, environment = Bytes(), Terminal(tasks=str(folder))
    spec_of(environment, images)
    (item,) = environment.items()
    assert (images.seen, item.data["instruction"], environment.time_limit_s(item)) == (
        text,
        "a\nb",
        7,
    )


@pytest.mark.parametrize(
    ("settings", "users"),
    [
        ("", ("", "")),
        ("[agent]\nuser = 'ann'\n[verifier]\nuser = 1000", ("ann", "1000")),
        ("[agent]\nuser = '1000:50'\n[verifier]\nuser = 'root'", ("1000:50", "root")),
        ("[agent]\nuser = 0\n[verifier]\nuser = ''", ("root", "")),
    ],
)
def test_the_users_of_agent_and_tests_are_read(
    tmp_path: Path, settings: str, users: tuple[str, str]
) -> None:
    """As in Harbor: a name or a uid; the container itself runs as root if a user is named."""
    folder = harbor(tmp_path / "one", task_toml=settings)
    (task,) = load_tasks(str(folder))
    assert (task.agent_user, task.tests_user) == users
    environment = Terminal(tasks=str(folder))
    assert spec_of(environment, Images()).user == ("0:0" if any(users) else None)
    (item,) = environment.items()
    (system, _) = environment.messages(item, {"workdir": "/a"})
    assert (
        f"as {'root' if users[0] in ('', 'root') else f'the user {users[0]}'}," in system["content"]
    )


def test_unsupported_tasks_are_left_out_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them makes no data set unusable, unless the user asks for it."""
    monkeypatch.delenv("NO_KEY", raising=False)
    harbor(tmp_path / "all" / "good")
    bad = harbor(tmp_path / "all" / "bad", task_toml="[agent]\nuser = 'a b'")
    harbor(tmp_path / "all" / "below" / "good", instruction_md="another")
    harbor(tmp_path / "all" / "needs-key", task_toml='[environment.env]\nK = "${NO_KEY}"')
    environment = Terminal(tasks=str(tmp_path / "all"))
    assert [(item.id, item.data["instruction"]) for item in environment.items()] == [
        ("good", "another")
    ]
    assert sorted(environment.left_out) == ["bad", "good", "needs-key"]
    assert "agent.user='a b' is not allowed" in environment.left_out["bad"]
    assert "'good' occurs twice" in environment.left_out["good"]
    for source, mode in ((tmp_path / "all", "fail"), (bad, "skip")):
        with pytest.raises(SpecError, match=r"agent\.user"):
            Terminal(tasks=str(source), unsupported=mode)
    rows = [
        {"id": "r1", "instruction": "Do.", "docker_image": "x", "test_sh": "y"},
        [],
        {"id": "r3"},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    environment = Terminal(tasks=str(tmp_path / "rows.jsonl"))
    assert ([item.id for item in environment.items()], sorted(environment.left_out)) == (
        ["r1"],
        ["line 2", "r3"],
    )


def test_the_environment_is_loaded_by_name(tmp_path: Path) -> None:
    """With options in the form of the command line."""
    found = load_environment(
        "terminal", {"tasks": str(harbor(tmp_path / "one")), "pull": "yes", "substitute": "a=b,c=d"}
    )
    assert [item.id for item in found.items()] == ["one"]
    with pytest.raises(SpecError, match="verify"):
        load_environment("terminal", {"verify": "never"})
    assert len(list(load_environment("terminal").items())) == 4
