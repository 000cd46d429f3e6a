"""Programs on the host whose output is streamed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperruntime.host.process import stream_process, wait_until


def test_an_interrupted_program_can_still_print_while_it_cleans_up(tmp_path: Path) -> None:
    told, cleaned = tmp_path / "told", tmp_path / "cleaned"
    script = f"echo step; until [ -e '{told}' ]; do sleep 0.01; done; head -c 300000 /dev/zero && echo > '{cleaned}'"

    def interrupt(line: str) -> None:
        assert line == "step"
        raise KeyboardInterrupt

    def before_kill(_pid: int) -> None:
        told.touch()
        assert wait_until(cleaned.exists, 30)

    with pytest.raises(KeyboardInterrupt):
        stream_process(["sh", "-c", script], on_line=interrupt, before_kill=before_kill)
    assert cleaned.exists()
