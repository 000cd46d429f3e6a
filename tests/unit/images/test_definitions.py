"""Definition files: their parsing, and the Containerfiles that are made from them."""

from __future__ import annotations

import os
import re
import shlex
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hyperruntime.errors import SpecError, StorageError
from hyperruntime.host.process import run_process
from hyperruntime.images.building.definition import (
    check_contained,
    containerfile_of,
    parse_environment,
    render,
)
from hyperruntime.images.definition_file import Copied, parse_definition, parse_stages, with_base
from hyperruntime.images.words import UNKNOWN

HEAD = "Bootstrap: localimage\nFrom: localhost/x:1\n"


def test_every_part_of_a_definition_file_is_parsed() -> None:
    """Sections in any order, comments, quotes, repeated sections, arguments with a default."""
    text = """
# what it is
bootstrap: docker   # kind
From: debian:{{ TAG }}

%post -c /bin/bash
    echo one
%files
    # none
    "a b" "/c d"
    plain
    %labels
    Who  me and you
%arguments
    TAG=12
%post
    echo two
"""
    found = parse_definition(text, {"UNUSED": "x"})
    assert (found.bootstrap, found.base) == ("docker", "debian:12")
    assert found.files == (Copied(source="a b", target="/c d"), Copied(source="plain"))
    assert found.post.words == ("-c", "/bin/bash")
    assert [line.strip() for line in found.post.text.split("\n") if line.strip()] == [
        "echo one",
        "echo two",
    ]
    assert found.labels == {"Who": "me and you"}
    assert parse_definition(text, {"TAG": "13"}).base == "debian:13"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("From: x\n", "Bootstrap"),
        ("Bootstrap: docker\n", "From"),
        (f"{HEAD}%appinstall x\n", "appinstall"),
        (f"{HEAD}%post\n{HEAD}", "one stage"),
        (f"{HEAD}%files from build\n a b\n", "without a stage"),
        (f"{HEAD}Fingerprints: x\n", "header"),
        (f"{HEAD}%files\n a b c\n", "source and a target"),
        (f"{HEAD}%post\n echo {{{{ NO }}}}\n", "NO"),
    ],
)
def test_a_definition_that_cannot_be_built_is_rejected(text: str, says: str) -> None:
    """The message names the problem."""
    with pytest.raises(SpecError, match=says):
        parse_definition(text)


@given(st.text())
@example("%")
@example('Bootstrap: a\nFrom: b\n%files\n"')
def test_any_text_gives_a_containerfile_or_a_spec_error(text: str) -> None:
    for candidate in (text, f"{HEAD}%files\n{text}", f"{HEAD}%environment\n{text}"):
        with suppress(SpecError):
            render([parse_definition(candidate)], Path())


_NAMES = st.sampled_from(["A", "B", "PATH"])
_REFERRED = st.sampled_from(["A", "B", "C", "PATH"])
_LITERAL = st.text(st.characters(codec="utf-8", exclude_characters="\0\n\r"), max_size=8)


_PARTS = st.one_of(
    _LITERAL.map(shlex.quote),
    st.from_regex(r"[\w/.:=+,@%-]{1,5}", fullmatch=True).filter(str.isascii),
    _REFERRED.map(lambda name: f"${name}"),
    _REFERRED.map(lambda name: f'"<${{{name}}}>"'),
    _REFERRED.map(lambda name: f"${{{name}:-none}}"),
    st.text('ab \\"$', max_size=6).map(lambda text: '"' + re.sub(r'(["\\$])', r"\\\1", text) + '"'),
    st.sampled_from(["\\ ", "\\$", '"a\\b"', "''", '""']),
)
_LINES = st.tuples(st.booleans(), _NAMES, st.lists(_PARTS, max_size=4)).map(
    lambda line: f"{'export ' if line[0] else ''}{line[1]}={''.join(line[2])}"
)


@given(st.lists(_LINES, min_size=1, max_size=5))
@example(["export A=1", "B=$A", "export A=2", "export B"])
@example(["export A=/x:$A", "export B=$A"])
def test_the_parsed_environment_equals_that_of_a_shell(lines: list[str]) -> None:
    """The test compares with /bin/sh, which runs the same script with the same variables."""
    before = {"C": "old", "PATH": "/usr/bin:/bin"}
    script = "\n".join(lines)
    shown = run_process(
        ["/bin/sh", "-c", f"{script}\nexec /usr/bin/env -0"], env=before
    ).stdout.decode()
    expected = dict(line.split("=", 1) for line in shown.split("\0") if line)
    try:
        assigned = parse_environment(script)
    except SpecError as error:
        assert "may be empty" in str(error) and ":-none" in script  # noqa: PT017, PT018 - the only error that is allowed
        return
    referred = re.compile(rf"{UNKNOWN}\{{(\w+)(?::-(\w+))?\}}")
    values = {
        name: referred.sub(lambda found: before.get(found[1], "") or found[2] or "", value)
        for name, value in assigned.items()
    }
    assert {**before, **values} == {
        name: value for name, value in expected.items() if name in ("A", "B", *before)
    }


@pytest.mark.parametrize(
    "script",
    [
        "export A=$(date)",
        "if true; then export A=1; fi",
        "export A=$HOME/x",
        "A=1 run",
        "export A=`x`",
        "export A=*",
        'export A="\\`"',
    ],
)
def test_an_environment_that_needs_a_shell_is_rejected(script: str) -> None:
    """The result could differ from Apptainer's."""
    with pytest.raises(SpecError, match="environment"):
        parse_environment(script)


def test_values_may_refer_to_variables_of_the_base_image() -> None:
    """``PATH`` is that of the base image."""
    assert parse_environment("export PATH=/a:$PATH") == {"PATH": f"/a:{UNKNOWN}{{PATH}}"}


@pytest.mark.parametrize(
    ("base", "line"),
    [
        ("Bootstrap: docker\nFrom: debian:12", "FROM docker.io/library/debian:12"),
        ("Bootstrap: docker\nFrom: me/it:1", "FROM docker.io/me/it:1"),
        ("Bootstrap: docker\nFrom: ghcr.io/me/it", "FROM ghcr.io/me/it"),
        ("Bootstrap: docker\nFrom: localhost/it", "FROM localhost/it"),
        ("Bootstrap: docker\nRegistry: host:5000\nFrom: it", "FROM host:5000/it"),
        ("Bootstrap: localimage\nFrom: it:1", "FROM it:1"),
        ("Bootstrap: localimage\nFrom: stage0", "FROM stage0:latest"),
        ("Bootstrap: localimage\nFrom: 0", "FROM 0:latest"),
    ],
)
def test_base_images_are_written_in_the_form_of_other_engines(base: str, line: str) -> None:
    """A name without a registry means Docker Hub."""
    assert render([parse_definition(base)], Path()).splitlines()[0] == f"{line} AS stage0"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Bootstrap: localimage\nFrom: scratch\n", "`Bootstrap: scratch`"),
        (f"{HEAD}%runscript -c /bin/bash\n true\n", "first line, such as #!/bin/bash"),
    ],
)
def test_what_would_mean_something_else_is_refused(text: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        render([parse_definition(text)], Path())


def test_a_runscript_names_its_program(tmp_path: Path) -> None:
    for script, first in (("\n  #!/usr/bin/python3\nx", "#!/usr/bin/python3"), ("x", "#!/bin/sh")):
        (tmp_path / "c.def").write_text(f"{HEAD}%runscript # why\n{script}\n")
        with containerfile_of(tmp_path / "c.def", tmp_path) as made:
            lines = (made.parent / "payload/0/runscript").read_text().splitlines()
        assert lines == [first, "x"]


HOST_SECTIONS = [
    "%setup\n touch x\n",
    "%Setup\n touch x\n",
    "%%setup\n touch x\n",
    "%setup -c /bin/sh\n touch x\n",
    "%setup # a comment\n touch x\n",
    "%setup \t\n touch x\n",
    "%setup\r\n touch x\r\n",
    "%pre\n # a comment\n touch x\n",
    "%post\n cat <<E\n%pre\n touch x\n",
    "%post\n echo \\\n%setup\n touch x\n",
    "%post\n true\n%setup\n\n%post\n true\n%SETUP\n touch x\n",
    f"%post\n true\n{HEAD}%setup\n touch x\n",
    "%arguments\n A=%setup\n%post\n true\n{{ A }}\n touch x\n",
    "%arguments\n A={{ B }}up\n B=%set\n%post\n true\n{{ A }}\n touch x\n",
    "%post\n echo {{ GIVEN }}\n",
]


@pytest.mark.parametrize("sections", HOST_SECTIONS)
def test_sections_that_run_on_the_host_are_rejected(sections: str) -> None:
    """``%setup`` and ``%pre`` would run with the rights of the user who builds, however they are
    written.
    """
    given = {"GIVEN": "x\n%setup\n touch x"}
    with pytest.raises(
        SpecError, match=r"(?i)%(setup|pre)' is not allowed: no section may run on the host"
    ):
        parse_stages(f"{HEAD}{sections}", given)
    with pytest.raises(SpecError, match="no section may run"):
        parse_stages(f"\ufeff{HEAD}{sections}", given)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{HEAD}\f%setup\n touch x\n", "header line|control characters"),
        (f"{HEAD}%post\n true\r%setup\n touch x\n", "control characters"),
        (f"{HEAD}%appinstall ../../x\n touch x\n", "must start a section"),
        (f"{HEAD}%appfiles x\n /etc/shadow y\n", "must start a section"),
        ("Bootstrap: debootstrap\nOSVersion: bookworm\nMirrorURL: file:///x\n", "OSVersion"),
        ("Bootstrap: yum\nFrom: x\n", "Bootstrap: yum"),
        ("Bootstrap: docker-archive\nFrom: /x.tar\n", "Bootstrap: docker-archive"),
        ("Bootstrap: docker-daemon\nFrom: x:1\n", "Bootstrap: docker-daemon"),
        ("Bootstrap: doc\\\nker\nFrom: x\n", "in one line"),
        ("Bootstrap: docker\nBootstrap : yum\nFrom: x\n", "given once"),
        ("Bootstrap: docker\nFrom: dir:/etc\n", "hyperrun image load FILE"),
        ("Bootstrap: localimage\nFrom: docker-archive:/x.tar\n", "hyperrun image load FILE"),
    ],
)
def test_a_definition_cannot_use_programs_and_files_of_the_host(text: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        parse_stages(text)


@pytest.mark.parametrize(
    "source",
    ["$(touch${IFS}x)", "x;touch${IFS}y", "`id`", '"a\tb"', "../secret", "~/secret", "missing*"],
)
def test_sources_are_exact_paths_of_the_context(tmp_path: Path, source: str) -> None:
    context = tmp_path / "context"
    (context / "~").mkdir(parents=True)
    (tmp_path / "secret").write_text("key")
    (context / "~" / "secret").symlink_to(tmp_path / "secret")
    definition = parse_definition(f"{HEAD}%files\n {source} /x\n")
    with pytest.raises(SpecError, match="definition file"):
        check_contained(definition, context)


def test_stages_and_scripts_are_steps(tmp_path: Path) -> None:
    (tmp_path / "-a.txt").write_text("a")
    (tmp_path / "b c.txt").write_text("b")
    (tmp_path / "c.def").write_text(f"""# who
{HEAD}Stage: one
%arguments
 A=default
%setup

%files
 *.txt /srv/
 "b c.txt"
%post -c /bin/bash
 echo {{{{ A }}}} # {{{{ NO }}}}
Bootstrap: oras
From: example.org/x
%files from one
 /x /y
 /srv/.
%environment
 [ -n "$A" ] || export A=$(date)
%test
 true
""")
    with containerfile_of(tmp_path / "c.def", tmp_path, {"A": "given"}, runs_scripts=True) as made:
        text = made.read_text()
        payload = made.parent / "payload"
        first = (payload / "0/files.sh").read_text().splitlines()[-3:]
        assert [shlex.split(line)[2] for line in first] == ["/srv/", "/srv/", "/b c.txt"]
        assert (payload / "0/post.sh").read_text().strip() == "echo given # {{ NO }}"
        second = (payload / "1/files.sh").read_text().splitlines()[-2:]
        test = (payload / "1/test.sh").read_text().split()
    assert second == ["put /.hyperruntime-build/0.0/x /y", "put /.hyperruntime-build/1.0/. /srv/."]
    assert test == [".", "/.singularity.d/env/90-environment.sh", "true"]
    work = "/.hyperruntime-build"
    assert text.replace(work, "W").replace("/.singularity.d/env", "E").splitlines() == [
        "FROM localhost/x:1 AS stage0", "USER 0:0", "WORKDIR /", "COPY payload/0/ W/",
        'RUN ["/bin/sh", "W/files.sh"]', 'RUN ["/bin/sh", "-ex", "-c", "/bin/bash W/post.sh"]',
        'RUN ["rm", "-rf", "W"]',
        "FROM stage0 AS files1.0", "USER 0:0", "WORKDIR /",
        'RUN ["/bin/sh", "-c", "mkdir -p W/0.0 && cp -fRL -- /x W/0.0/ && mkdir -p W/1.0 && '
        'cp -fRL -- /srv/./. W/1.0/"]',
        "FROM oras://example.org/x AS stage1", "USER 0:0", "WORKDIR /", "COPY payload/1/ W/",
        "COPY --from=files1.0 W/ W/", 'RUN ["/bin/sh", "W/files.sh"]',
        'RUN ["/bin/sh", "-c", "mkdir -p E && if [ -e E/90-environment.sh ]; then '
        'echo >> E/90-environment.sh; fi && cat W/environment >> E/90-environment.sh && '
        'chmod 755 E/90-environment.sh"]',
        'RUN ["/bin/sh", "-ex", "W/test.sh"]', 'RUN ["rm", "-rf", "W"]',
    ]  # fmt: skip


def test_a_stage_that_does_not_come_before_is_refused(tmp_path: Path) -> None:
    stages = parse_stages(f"{HEAD}%files from later\n /x /y\n{HEAD}Stage: later\n")
    with pytest.raises(SpecError, match="Stage of an earlier part"):
        render(stages, tmp_path)


@pytest.mark.parametrize(
    "base", ["/", "../x.sif", "link.sif", "none.sif", "./dir", "./a\u00a0b.sif"]
)
def test_a_local_image_lies_in_the_context_or_in_the_store(tmp_path: Path, base: str) -> None:
    (tmp_path / "link.sif").symlink_to("/etc/passwd")
    (tmp_path / "dir").mkdir()
    for name in ("x.sif", "a\u00a0b.sif"):
        (tmp_path / name).touch()
    text = "Bootstrap: localimage\nFrom: {}\n"
    with pytest.raises(SpecError, match="hyperrun image load FILE"):
        render([parse_definition(text.format(base))], tmp_path, runs_scripts=True)
    inside = [parse_definition(text.format("./x.sif"))]
    assert f"FROM {tmp_path}/x.sif AS" in render(inside, tmp_path, runs_scripts=True)
    with pytest.raises(SpecError, match="without Apptainer"):
        render(inside, tmp_path)


def test_with_base_replaces_only_the_header() -> None:
    text = with_base(f"# c\n{HEAD}%post\n echo From: y\n", "localimage", "localhost/z")
    found = parse_definition(text)
    assert (found.base, found.post.text.strip()) == ("localhost/z", "echo From: y")


@pytest.mark.parametrize("source", ["../secret", "link", "tree", "through"])
def test_files_outside_the_context_are_not_copied(tmp_path: Path, source: str) -> None:
    """Neither by path nor by a link, at the top, in a subdirectory or behind another link."""
    context = tmp_path / "context"
    (context / "tree").mkdir(parents=True)
    (tmp_path / "secret").write_text("key")
    (context / "link").symlink_to(tmp_path / "secret")
    (context / "tree" / "link").symlink_to("../../secret")
    (context / "through").mkdir()
    (context / "through" / "tree").symlink_to("../tree")
    path = context / "c.def"
    path.write_text(f"{HEAD}%files\n {source} /x\n")
    with pytest.raises(SpecError, match="lie in"):
        check_contained(parse_definition(path.read_text()), context)
    with pytest.raises(SpecError, match="lie in"), containerfile_of(path, context):
        pass


@pytest.mark.parametrize(
    "links",
    [
        {"a/self": "."},
        {"a/up": ".."},
        {"a/in/up": "../../a"},
        {"a/to": "../b", "b/back": "../a"},
        {f"{at}/{way}": f"../{at + 1}" for at in range(40) for way in "xy"} | {"a/x": "../0"},
    ],
)
def test_a_copy_that_has_no_end_is_refused(tmp_path: Path, links: dict[str, str]) -> None:
    for name, target in links.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(target)
    (tmp_path / "40").mkdir()
    with pytest.raises(SpecError, match=r"directory that contains it|at most 1000000 files"):
        check_contained(parse_definition(f"{HEAD}%files\n a /a\n"), tmp_path)


def test_links_to_directories_of_the_context_are_copied(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "b" / "file").write_text("text")
    for name in ("one", "two"):
        (tmp_path / "a" / name).symlink_to("../b")
    (tmp_path / "c.def").write_text(f"{HEAD}%files\n a /a\n")
    with containerfile_of(tmp_path / "c.def", tmp_path) as made:
        copied = made.parent / "payload/0/0.0/a"
        assert [path.read_text() for path in sorted(copied.glob("*/file"))] == ["text"] * 2


@pytest.mark.parametrize("source", ["a", "a/file"])
def test_a_file_that_cannot_be_read_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    def refuse(source: str, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", os.fspath(source))

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("text")
    (tmp_path / "c.def").write_text(f"{HEAD}%files\n {source} /a\n")
    monkeypatch.setattr("shutil.copyfile", refuse)
    says = "files of the definition file cannot be copied: .*Permission denied: '.*a/file'$"
    with (
        pytest.raises(StorageError, match=says),
        containerfile_of(tmp_path / "c.def", tmp_path),
    ):
        pass
