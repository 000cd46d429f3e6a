"""The check of a node: what is missing has its next step, and a file system between machines is
tried, not trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from hyperruntime.cluster import check as check_module
from hyperruntime.cluster.check import CheckService, check_node
from hyperruntime.cluster.head import Head
from hyperruntime.cluster.node_findings import Needs, node_findings
from hyperruntime.cluster.node_server import run_node
from hyperruntime.cluster.node_services import NodeContext, NodeSettings
from hyperruntime.driver import Finding
from hyperruntime.host.temporary import SCRATCH
from hyperruntime.storage.atomic import write_atomic


def by_subject(findings: Sequence[Finding]) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings}


def checked(directory: Path) -> dict[str, Finding]:
    async def check() -> Sequence[Finding]:
        head = Head()
        await head.start("127.0.0.1")
        invitation = head.invite("n1")
        served = asyncio.ensure_future(
            run_node(invitation, NodeSettings(), lambda context: (services(context),))
        )
        node = head.nodes["n1"]
        await node.joined.wait()
        try:
            return await check_node(node, directory, Needs())
        finally:
            await head.stop()
            served.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await served

    def services(context: NodeContext) -> CheckService:
        return CheckService(context)

    return by_subject(asyncio.run(asyncio.wait_for(check(), 100)))


@pytest.fixture
def without_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")


@pytest.mark.usefixtures("without_engines")
def test_a_machine_without_anything_fails_with_a_next_step_for_each_thing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "NoDevFiles")
    monkeypatch.setenv(SCRATCH, "/not/here")
    found = by_subject(list(node_findings(Needs(gpus=2))))
    failed = {subject: finding for subject, finding in found.items() if finding.ok is False}
    assert set(failed) == {"git", SCRATCH, "GPUs granted", "engine for work"}
    assert [subject for subject, finding in failed.items() if not finding.next_step] == []
    assert found["engine for work"].detail == "none works"
    assert (found["podman: podman"].ok, found["podman: podman"].detail) == (None, "not on PATH")


@pytest.mark.usefixtures("without_engines")
def test_the_engine_of_the_configuration_must_work() -> None:
    found = by_subject(list(node_findings(Needs(runtime="apptainer"))))[
        "engine for work: apptainer"
    ]
    assert (found.ok, found.detail) == (False, "does not work; those that do: none works")
    assert found.next_step == "see above what each engine lacks"


def test_a_simulated_nfs_with_late_listings_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delayed by a timer: no NFS is here."""

    def late(path: Path, content: bytes) -> None:
        threading.Timer(check_module.LATE_S + 0.5, write_atomic, (path, content)).start()

    monkeypatch.setattr(check_module, "node_findings", lambda needs: [])
    monkeypatch.setattr(check_module, "LATE_S", 0.5)
    monkeypatch.setattr(check_module, "write_atomic", late)
    found = checked(tmp_path)
    for subject in (
        "a file renamed by the head is seen on the node",
        "a file renamed by the node is seen by the head",
    ):
        assert found[subject].ok is None
        assert found[subject].next_step.startswith("`hyperrun` waits for it")
    assert found["clock"].ok is True
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_that_the_node_does_not_see_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_module, "node_findings", lambda needs: [])
    monkeypatch.setattr(check_module, "SEEN_S", 0.3)
    monkeypatch.setattr(check_module, "_lists", lambda directory: False)
    found = checked(tmp_path)["run directory"]
    assert (found.ok, found.next_step) == (
        False,
        "run in a directory that all nodes share, such as one below $HOME",
    )
