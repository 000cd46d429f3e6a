"""A definition file gives the same image on every engine (T4)."""

from __future__ import annotations

from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import ImageBuildError
from tests.contract.builds import built

REFERENCE = "localhost/hyperruntime-test/definition:latest"
BASE = "localhost/hyperruntime-test/definition-base:latest"
TEXT = """\
Bootstrap: localimage
From: {base}

%arguments
    WORD=default

%files
    "a dir/odd ü+name.txt" "/srv/odd name.txt"
    one.* /opt/new/
    "a dir" /srv/tree
    "a dir" /opt

%post -c /bin/bash
    set -e
    if [[ {{{{ WORD }}}} == given ]]; then mkdir -p /home/user; echo post > /home/user/post.txt; fi
    printf '#!/bin/sh\\necho "a $1"\\n' > /home/user/run.sh
    chmod 750 /home/user/run.sh

%environment
    export GREETING="hello \\"world\\" \\$5 it's"
    export PATH=/opt/new:$PATH
    export TAIL='back\\slash\\'
    HIDDEN=1

%labels
    Author someone "quoted" $x

%test
    test "$TAIL" = 'back\\slash\\'
"""


def test_a_definition_file_is_built_completely(
    runtime: hr.Runtime, base_image: str, odd_path: Path
) -> None:
    """Files with odd names, directories, %post in its own shell, %environment in every exec."""
    tree = odd_path / "a dir"
    tree.mkdir()
    (tree / "odd ü+name.txt").write_text("odd")
    (odd_path / "one.txt").write_text("one")
    (odd_path / "container.def").write_text(TEXT.format(base=base_image))
    show = (
        'cat "/srv/odd name.txt" "/srv/tree/odd ü+name.txt" "/opt/a dir/odd ü+name.txt" '
        '/opt/new/one.txt; echo; cat /home/user/post.txt; /home/user/run.sh b; printf "%s\\n" '
        '"$GREETING" "$TAIL" "[$HIDDEN]"; echo "${PATH%%:*}"; pwd; id -u; ls -d '
        "/.hyperruntime-build 2>&1 | grep -c cannot"
    )
    file = odd_path / "container.def"
    with built(runtime, REFERENCE, file, build_args={"WORD": "given"}) as container:
        result = container.exec(["sh", "-c", show])
    lines = ["oddoddoddone", "post", "a b", 'hello "world" $5 it\'s', "back\\slash\\", "[]"]
    assert result.stdout.decode().splitlines() == [*lines, "/opt/new", "/", "0", "1"], result.stderr


def test_the_error_of_a_failed_step_has_its_output(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """The error has the last lines of %post, and no image is left."""
    (tmp_path / "c.def").write_text(
        f"Bootstrap: localimage\nFrom: {base_image}\n%post\n echo wrong-thing >&2\n false\n"
    )
    with pytest.raises(ImageBuildError, match="wrong-thing"):
        runtime.images.build(REFERENCE, containerfile=tmp_path / "c.def", force=True)
    assert not runtime.images.exists(REFERENCE)


def test_build_steps_see_nothing_of_the_host(
    runtime: hr.Runtime, base_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build step sees no temporary files or variables of the host, because a task's recipe is
    untrusted.
    """
    monkeypatch.setenv("HYPERRUNTIME_TEST_SECRET", "key")
    show = "ls -a /tmp /var/tmp /home /root > /seen; env >> /seen"
    (tmp_path / "c.def").write_text(
        f"Bootstrap: localimage\nFrom: {base_image}\n%post\n {show}\n touch /tmp/left-behind\n"
    )
    with built(runtime, REFERENCE, tmp_path / "c.def") as container:
        seen = container.exec(["cat", "/seen"]).check().stdout.decode()
    assert "HYPERRUNTIME_TEST_SECRET" not in seen
    assert tmp_path.parts[2] not in seen
    assert not Path("/tmp/left-behind").exists()


def test_a_stage_takes_files_of_an_earlier_one(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    head = f"Bootstrap: localimage\nFrom: {base_image}\n"
    (tmp_path / "c.def").write_text(
        f"{head}Stage: first\n%post\n mkdir -p /made/in\n echo made > /made/in/x\n ln -s in/x /made/y\n"
        f"{head}%files from first\n /made/y\n /made /copy\n /made/in/. /content\n"
    )
    show = "cat /made/y /copy/in/x /content/x; test -L /made/y || ls -A /made"
    with built(runtime, REFERENCE, tmp_path / "c.def") as container:
        assert container.exec(["sh", "-c", show]).stdout.decode().split() == ["made"] * 3 + ["y"]


def test_a_definition_adds_to_the_variables_of_its_base(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    text = "Bootstrap: localimage\nFrom: {}\n%environment\n export {}\n"
    (tmp_path / "base.def").write_text(text.format(base_image, "ONE=1 BOTH=1"))
    (tmp_path / "c.def").write_text(text.format(BASE, "TWO=2 BOTH=2"))
    with (
        built(runtime, BASE, tmp_path / "base.def"),
        built(runtime, REFERENCE, tmp_path / "c.def") as container,
    ):
        shown = container.exec(["sh", "-c", "echo $ONE $TWO $BOTH"]).stdout
    assert shown == b"1 2 2\n"
