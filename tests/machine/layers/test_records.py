"""The records that replace a list of containers, which Apptainer lacks; the processes here are
ordinary ones.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyperruntime.errors import EngineError
from hyperruntime.host.process import (
    DEVNULL,
    HostProcess,
    kill_group,
    process_start_ticks,
    run_process,
    spawn,
    wait_until,
)
from hyperruntime.layers.records import Record, Records, discard, processes_of
from hyperruntime.layers.scratch import remove_tree
from hyperruntime.layers.snapshots.freezing import KeptLayers
from hyperruntime_apptainer import ApptainerDriver
from tests.processes import end

NAP = f"sleep 941.{os.getpid()}"  # unique to this test run
LABELS = {"io.hyperruntime.owner": "token", "mine": "1"}

RECORDS = Records("apptainer")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def files(tmp_path: Path) -> Path:
    directory = tmp_path / "scratch of c"
    (directory / "closed").mkdir(parents=True)
    (directory / "closed/file").write_text("x")
    (directory / "closed").chmod(0)
    return directory


@pytest.fixture
def keeper(files: Path) -> Iterator[HostProcess]:
    """Start a keeper process that names the container's directory, with a child process that does
    not.
    """
    args = ["/bin/sh", "-c", f"setsid {NAP} & wait", "keeper", str(files)]
    process = spawn(args, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    assert wait_until(lambda: len(processes_of(str(files))) == 2, 60)
    family = processes_of(str(files))
    yield process
    end(family)
    process.wait()


def write(process: HostProcess, files: Path) -> Record:
    return RECORDS.write("c", "image", "/source", LABELS, process.pid, str(files))


def test_removing_a_container_leaves_no_process_file_or_record(
    keeper: HostProcess, files: Path, state: Path
) -> None:
    write(keeper, files)
    ApptainerDriver().remove_container("c")
    assert keeper.wait(120) == -9
    assert NAP not in run_process(["ps", "-axo", "args="]).stdout.decode(errors="replace")
    assert not files.exists()
    assert not list(state.rglob("*.json"))
    ApptainerDriver().remove_container("c")


def test_files_are_removed_although_a_batch_system_ends_rm(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, told = tmp_path / "rm", tmp_path / "told"
    program.write_text(
        f"#!/bin/sh\n[ -e {told} ] || {{ : >{told}; kill -TERM $PPID $$; }}\nexec "
        f'{shutil.which("rm")} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    discard(str(files), "record")
    assert told.exists()
    assert not files.exists()


@pytest.mark.parametrize("label", ["io.hyperruntime.owner=other", "other=token", "mine"])
def test_the_guard_removes_only_containers_with_its_label(
    keeper: HostProcess, files: Path, label: str
) -> None:
    write(keeper, files)
    for wanted, left in ((label, 1), ("io.hyperruntime.owner=token", 0)):
        assert (
            run_process(
                ApptainerDriver().cleanup_args(wanted), cwd="/", env={**os.environ}
            ).exit_code
            == 0
        )
        assert len(ApptainerDriver().containers()) == left


def test_a_dead_container_is_listed_until_its_files_are_removed(
    keeper: HostProcess, files: Path, state: Path
) -> None:
    write(keeper, files)
    kill_group(keeper)
    keeper.wait()
    (listed,) = ApptainerDriver().containers()
    assert listed.state == "dead"
    remove_tree(str(files))
    assert ApptainerDriver().containers() == ()
    assert not list(state.rglob("*.json"))


def test_a_container_of_another_machine_is_listed_but_not_removed(
    keeper: HostProcess, files: Path
) -> None:
    write(keeper, files)
    path = Path(RECORDS.path_of("c"))
    facts = json.loads(path.read_text())
    facts["keeper"].update(host="another", boot_id="another boot")
    path.write_text(json.dumps(facts))
    (listed,) = ApptainerDriver().containers()
    assert listed.state == "elsewhere"
    with pytest.raises(EngineError, match=r"on another.*remove it there"):
        ApptainerDriver().remove_container("c")
    assert run_process(ApptainerDriver().cleanup_args("mine=1")).exit_code == 0
    assert process_start_ticks(keeper.pid) is not None
    assert files.exists()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"name": 1}', "\0"])
def test_a_damaged_record_does_not_hide_other_containers(
    keeper: HostProcess, files: Path, text: str
) -> None:
    write(keeper, files)
    Path(RECORDS.path_of("damaged")).write_text(text)
    assert [listed.id for listed in ApptainerDriver().containers()] == ["c"]


def test_files_of_an_owner_that_was_killed_before_the_program_started_are_removed(
    tmp_path: Path,
) -> None:
    code = """if True:
        import os
        from hyperruntime.driver import Launch
        from hyperruntime.layers.images import ImageSource
        from hyperruntime.layers.namespace import Namespace
        from hyperruntime.spec import ContainerSpec, Limits, Mount
        from hyperruntime_apptainer.args import Settings
        from hyperruntime_apptainer.driver import ApptainerContainer, ApptainerDriver
        Namespace.pid = lambda self: os.getpid()
        Namespace.start = lambda self, job: os.kill(os.getpid(), 9)
        spec, exchange = ContainerSpec(image="i", limits=Limits(pids=None)), Mount(source="/usr", target="/x")
        launch = Launch(spec=spec, name="c", labels={"mine": "1"}, exchange=exchange, private_dir="")
        means = ApptainerDriver()._means(users=False)
        ApptainerContainer(launch, Settings(), ImageSource(files="/source"), means)
    """
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = {**os.environ, "APPTAINER_TMPDIR": str(scratch)}
    assert run_process([sys.executable, "-c", code], env=env).exit_code == -signal.SIGKILL
    assert len(list(scratch.iterdir())) == 1
    assert run_process(ApptainerDriver().cleanup_args("mine=1")).exit_code == 0
    assert list(scratch.iterdir()) == []
    assert list(RECORDS.read_all()) == []


def test_a_record_stays_if_its_files_could_not_be_removed(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, programs = tmp_path / "record", tmp_path / "programs"
    record.write_text("{}")
    programs.mkdir()
    (programs / "rm").write_text(
        '#!/bin/sh\nfor path; do [ -d "$path" ] || /bin/rm -f -- "$path"; done; exit 1\n'
    )
    (programs / "rm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    discard(str(files), str(record))
    assert files.exists()
    assert record.exists()


def test_dropping_one_of_many_snapshots_reads_no_record_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptLayers(RECORDS)
    record = RECORDS.write("c", "image", "/tree", LABELS, os.getpid(), f"{tmp_path}/c")
    stacks = []
    for number in range(20):
        os.makedirs(changes := f"{tmp_path}/{number}")
        stacks.append(kept.freeze(record, changes, ["/tree"], running=False, users=False))
    with monkeypatch.context() as patch:
        patch.setattr(json, "loads", lambda _: pytest.fail("a record was read"))
        assert all(kept.drop(stack) for stack in stacks[:-1])
    RECORDS.write("d", "image", ":".join(stacks[-1]), LABELS, os.getpid(), f"{tmp_path}/d")
    assert not kept.drop(stacks[-1])
    kept.close()
