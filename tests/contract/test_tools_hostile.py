"""Tools in a container with replaced programs: the slot may get false results, but others are not
affected.
"""

from __future__ import annotations

import pytest

import hyperruntime as hr
from hyperruntime.pool.tools import artifact
from tests.contract.toolplace import make_desk

pytestmark = pytest.mark.engine

ENDLESS = "#!/bin/sh\nexec yes $(printf '%02000d' 7)\n"
SILENT = "#!/bin/sh\nexec sleep 1000\n"
GARBAGE = (
    "#!/bin/sh\nprintf 'f|nan|x|\\377\\0a\\0b:1:\\n'; /usr/bin/head -c 100000 /dev/urandom; "
    "exit 0\n"
)
PROGRAMS = "cat head grep find tar stat mv readlink mkdir wc"


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(ENDLESS, marks=pytest.mark.slow, id="endless"),
        pytest.param(SILENT, marks=pytest.mark.slow, id="silent"),
        pytest.param(GARBAGE, id="garbage"),
    ],
)
def test_replaced_programs_end_at_the_deadline_and_raise_nothing(
    runtime: hr.Runtime, base_image: str, program: str
) -> None:
    calls = [
        ("list_files", {"recursive": True}), ("search", {"pattern": "x"}), ("archive_artifacts", {}),
        ("write_file", {"path": "f", "content": "x"}), ("read_file", {"path": "link"}),
        ("edit_file", {"path": "f", "old": "a", "new": "b"}), ("list_artifacts", {}),
    ]  # fmt: skip
    with runtime.container(hr.ContainerSpec(image=base_image)) as container:
        desk = make_desk(container)
        desk.sh("printf a > f; ln -s f link; mkdir ../bin")
        assert desk("write_file", path="liar", content=program).success
        desk.sh(
            f"cd ../bin; mv ../the*/liar .; chmod 755 liar; for p in {PROGRAMS}; do ln -s liar "
            "$p; done"
        )
        desk.slot_exec.env["PATH"] = (
            f"/tmp/{desk.slot_exec.slot_id}/bin:/usr/local/bin:/usr/bin:/bin"
        )

        results = [desk.call(tool, args, timeout_s=0.7) for tool, args in calls]

        assert all("returncode" in result.metadata for result in results)
        assert all(result.error for result in results if not result.success)
        assert all(result.duration_s < 20 for result in results)
        assert all(len(result.output) < 200_000 for result in results)
        assert artifact(results[2])["success"] in (True, False)
        assert make_desk(container)("bash", command="echo fine").stdout == "fine\n"
