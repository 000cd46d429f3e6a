"""Trial containers of Docker: what is late is no answer of the daemon, and the second late one is
the last.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from requests.exceptions import ReadTimeout

from hyperruntime.errors import EngineError, EngineLateError, EngineUnavailableError
from hyperruntime.spec import Mount
from hyperruntime_docker.client import Engine, translated
from hyperruntime_docker.shell import Frames, read_text
from hyperruntime_docker.trial import Trial

LIMITS = "memory 67108864\npids 100\ncpu 50000\nworks"
Outcome = tuple[str, bool] | Exception


class Scripted(Trial):
    """A trial whose containers end as a script says; a container that works writes to the FIFO."""

    def _run(
        self, mounts: Sequence[Mount], script: str, host: Mapping[str, Any], last: str = ""
    ) -> tuple[str, bool]:
        outcome = next(OUTCOMES[self.image])
        if isinstance(outcome, Exception):
            raise outcome
        if "heard" in script and "works" in outcome[0]:
            with open(Path(self.exchange, "fifo"), "wb", buffering=0) as fifo:
                fifo.write(b"heard\n")
        return outcome


OUTCOMES: dict[str, Iterator[Outcome]] = {}


def trial(folder: Path, *outcomes: Outcome) -> Trial:
    os.mkfifo(folder / "fifo")
    OUTCOMES[str(folder)] = iter(outcomes)
    return Scripted(engine=Engine(), image=str(folder), exchange=str(folder), userland=())


def test_a_daemon_that_hangs_is_given_up_after_two_containers(tmp_path: Path) -> None:
    one = trial(tmp_path, ("", True), EngineLateError("no answer"))
    with pytest.raises(
        EngineUnavailableError,
        match=r"^docker .* its trial containers did not end in time, .*try again",
    ):
        one.limits()
    assert one.trials.is_over


def test_a_daemon_whose_limits_are_late_works_without_them(tmp_path: Path) -> None:
    one = trial(tmp_path, ("", True), ("memory none\nworks", False))
    assert one.limits() == {"memory_bytes": "no", "pids": "no", "cpus": "no"}
    assert one.trials.late == 1, "so it is not remembered"


def test_only_the_end_of_the_output_may_be_lost(tmp_path: Path) -> None:
    one = trial(tmp_path, (LIMITS, True))
    assert one.limits() == {"memory_bytes": "cgroup", "pids": "cgroup", "cpus": "cgroup"}
    assert one.trials.late == 0


@pytest.mark.parametrize(
    ("outcomes", "works", "late"),
    [
        ([("works", False)], True, 0),
        ([EngineError("refused"), ("works", False)], True, 0),
        ([EngineError("refused"), ("", False)], False, 0),
        ([("", True)], False, 1),
        ([EngineLateError("no answer")], False, 1),
        ([EngineError("refused"), ("", True)], False, 1),
    ],
)
def test_a_network_whose_container_is_late_is_not_tried_again(
    tmp_path: Path, outcomes: list[Outcome], works: bool, late: int
) -> None:
    one = trial(tmp_path, *outcomes)
    assert (one.works_with("bridge"), one.trials.late) == (works, late)


def test_output_that_does_not_come_in_time_is_late() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert read_text(ours, b"", 0.01) == ("", True)
        theirs.close()
        assert read_text(ours, b"", 60) == ("", False)


def test_an_answer_that_does_not_come_in_time_is_late() -> None:
    with (
        pytest.raises(EngineLateError, match="did not answer in time"),
        translated("a container does not start"),
    ):
        raise ReadTimeout


class Counted(bytes):
    """Bytes that count how many of them were copied by slices."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        if not isinstance(part, bytes):
            return part
        Counted.copied += len(part)
        return Counted(part)

    def __radd__(self, other: bytes) -> Counted:
        return Counted(other + bytes(self))


def test_many_short_frames_are_split_without_copying_the_rest_for_each() -> None:
    frames, chunk = (
        Frames(),
        Counted(struct.pack(">BxxxL", 1, 1).join([b"", *[b"x"] * 5000]) + b"x"),
    )
    Counted.copied = 0
    parts = list(frames.split(chunk))
    assert len(parts) == 5000
    assert Counted.copied <= len(chunk)
