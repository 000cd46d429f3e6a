"""Builds of Containerfiles by the steps of this library, on the engines without a builder."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.errors import ImageBuildError, SpecError
from hyperruntime.host.engine_program import ALL_IDS
from hyperruntime.host.process import find_program, run_process
from hyperruntime.layers.images import StoredImages
from hyperruntime.layers.overlays import FUSE
from hyperruntime.layers.store import Store
from hyperruntime_bubblewrap.probe import cached_probe
from tests.containerfiles import BASE, digest_of, write_base, write_context
from tests.contract.builds import built

# made by `buildah bud --layers=false --format docker` 1.28 from files of tests/containerfiles.py
BUILDAH: dict[str, Any] = json.loads(Path(__file__).with_name("buildah.json").read_text())
DUMP = """import json, sys
from pathlib import Path
from tests.containerfiles import tree_of
print(json.dumps(tree_of(Path(sys.argv[1]))))"""
REFERENCE = "localhost/hyperruntime-test/steps:latest"
pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def _only_steps(runtime: hr.Runtime) -> None:
    if runtime.name not in ("apptainer", "bubblewrap", "charliecloud"):
        pytest.skip("it has a builder of its own")


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A build context; the Containerfile is written by :func:`shown`."""
    for name, text in {"a": "1", "b": "2", "dir/.dot": "3", "dir/in": "4"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o644)
    (tmp_path / "dir").chmod(0o755)
    return tmp_path


def shown(
    runtime: hr.Runtime, context: Path, base: str, text: str, command: str = "cat /seen"
) -> str:
    """Build a Containerfile and return what a command in its image prints."""
    file = context / "Containerfile"
    file.write_text(text.replace("BASE", base))
    with built(runtime, REFERENCE, file) as container:
        result = container.exec(["sh", "-c", command])
    assert result.exit_code == 0, result.stderr
    return result.stdout.decode()


def test_stages_give_files_to_later_ones(
    runtime: hr.Runtime, context: Path, base_image: str
) -> None:
    text = """FROM BASE AS made
WORKDIR /made/deep
COPY dir/* b ./
RUN rm b && ln -s in link && mkdir -m 750 sub && echo x > sub/run && chmod 4755 sub/run
FROM BASE
ARG none
RUN [ ! -e /made ]
COPY --from=made /made /copied
COPY --from=0 /made/deep/link /copied/followed
COPY --from=BASE /etc/debian_version /version
RUN cd /copied && find . | sort > /seen && stat -c '%a %F' deep/link deep/sub deep/sub/run followed >> /seen
"""
    assert shown(runtime, context, base_image, text) == (
        ".\n./deep\n./deep/.dot\n./deep/in\n./deep/link\n./deep/sub\n./deep/sub/run\n./followed\n"
        "777 symbolic link\n750 directory\n4755 regular file\n644 regular file\n"
    )


def test_a_step_runs_again_only_if_what_it_depends_on_has_changed(
    runtime: hr.Runtime, context: Path, base_image: str
) -> None:
    file = context / "Containerfile"
    mark = uuid.uuid4().hex
    file.write_text(
        f"FROM {base_image}\nRUN echo {mark} > /mark\nCOPY a /a\nRUN cp /a /c\nCOPY b /b\n"
    )

    def ran() -> list[int]:
        lines: list[str] = []
        runtime.images.build(REFERENCE, containerfile=file, on_output=lines.append)
        runtime.images.remove(REFERENCE)
        starts = [number for number, line in enumerate(lines) if line.startswith("STEP")][1:]
        return [int(lines[at + 1 : at + 2] != ["--> from the cache"]) for at in starts]

    assert ran() == [1, 1, 1, 1]
    assert ran() == [0, 0, 0, 0]
    (context / "b").write_text("other")
    assert ran() == [0, 0, 0, 1]
    (context / "a").chmod(0o600)
    assert ran() == [0, 1, 1, 1]


def test_mounts_of_a_step_leave_nothing_in_the_image(
    runtime: hr.Runtime, context: Path, base_image: str
) -> None:
    (context / ".dockerignore").write_text("b\n")
    text = """FROM BASE
RUN --mount=type=cache,target=/kept/deep,id=KEY rm -rf /kept/deep/* && echo 1 > /kept/deep/x
RUN --mount=type=cache,target=/again,id=KEY cat /again/x > /seen
RUN --mount=type=bind,source=dir,target=/bound cat /bound/.dot >> /seen
RUN --mount=target=/all ls /all >> /seen
RUN --mount=type=tmpfs,target=/memory echo x > /memory/x
RUN ls -d /kept /again /bound /all /memory /.hyperruntime-step >> /seen 2>/dev/null || true
""".replace("KEY", uuid.uuid4().hex)
    assert shown(runtime, context, base_image, text) == "1\n3Containerfile\na\ndir\n"


def test_a_step_may_mount_one_cache_twice(
    runtime: hr.Runtime, context: Path, base_image: str
) -> None:
    text = """FROM BASE
RUN --mount=type=cache,target=/one,id=KEY --mount=type=cache,target=/two,id=KEY \\
    echo 1 > /one/x && cat /two/x > /seen
RUN --mount=source=dir,target=/bound cat /bound/in >> /seen
RUN --mount=type=tmpfs,target=/memory stat -c %a /memory > /mode && cat /mode >> /seen
""".replace("KEY", uuid.uuid4().hex)
    assert shown(runtime, context, base_image, text) == "1\n41777\n"


@pytest.mark.parametrize("ignored", ["", "left out*\n"])
def test_paths_may_have_blanks_and_letters_of_any_language(
    runtime: hr.Runtime, tmp_path: Path, base_image: str, ignored: str
) -> None:
    folder = tmp_path / "some folder, größer: 日本"
    (folder / "a dir/é").mkdir(parents=True)
    (folder / "a dir/é/ein ö.txt").write_text("1\n")
    (folder / "left out ü").write_text("2\n")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    file = tmp_path / "Kochbuch für eins"
    if ignored:
        file.with_name(f"{file.name}.dockerignore").write_text(ignored)
    file.write_text(f"""FROM {base_image}
WORKDIR "/wo rk/ñ"
COPY ["a dir/é/ein ö.txt", "x ß"]
COPY a\\ dir/*/*.txt /copied/
RUN --mount=target=/all ls /all > /seen && cat "x ß" /copied/ein* >> /seen && pwd >> /seen
""")
    with built(runtime, REFERENCE, file, context=folder) as container:
        listed = "a dir\n" if ignored else "a dir\nleft out ü\n"
        assert container.exec(["cat", "/seen"]).stdout.decode() == f"{listed}1\n1\n/wo rk/ñ\n"


def test_here_documents_are_run_and_copied(
    runtime: hr.Runtime, context: Path, base_image: str
) -> None:
    text = """FROM BASE
ENV A=1
RUN <<E
echo "$A $(umask)" > /seen
E
RUN <<E
#!/usr/bin/python3
print("python", file=open("/seen", "a"))
E
COPY --chmod=600 <<one <<"two" /t/
$A
one
$A
two
RUN cat /t/one /t/two >> /seen; stat -c %a /t/one >> /seen
"""
    assert shown(runtime, context, base_image, text) == "1 0022\npython\n1\n$A\n600\n"


def test_archives_are_unpacked_and_links_of_the_image_are_followed_inside_it(
    runtime: hr.Runtime, context: Path, base_image: str
) -> None:
    with tarfile.open(context / "x.tgz", "w:gz") as tar:
        member = tarfile.TarInfo("sub/file")
        member.mode = 0o604
        member.size = 3
        tar.addfile(member, io.BytesIO(b"abc"))
    text = """FROM BASE
RUN mkdir /real && ln -s /real /to && ln -s /real/f /file
ADD x.tgz a /to/
COPY b /file
COPY --link b /to/b
COPY x.tgz /kept
RUN find /real /to /file /kept | sort > /seen; stat -c %a /real/sub/file >> /seen
"""
    assert shown(runtime, context, base_image, text) == (
        "/file\n/kept\n/real\n/real/a\n/real/f\n/real/sub\n/real/sub/file\n/to\n/to/b\n604\n"
    )


def test_users_and_owners_are_kept_where_this_user_has_other_ids(
    runtime: hr.Runtime, context: Path, base_image: str
) -> None:
    if runtime.name == "charliecloud":
        pytest.skip("its containers have one user, also where this user has other ids")
    text = f"""FROM BASE
COPY --chown=33:7 a /x/y
USER 1000:1000
RUN --mount=type=cache,target=/own,uid=1000,gid=7,id={uuid.uuid4().hex} id -u > /own/u && cp /own/u /tmp/u
USER 3333
RUN touch /tmp/of-a-number
USER root
"""
    command = "stat -c '%u:%g' /x /x/y /tmp/u /tmp/of-a-number; cat /tmp/u"
    if runtime.info.users:
        want = "33:7\n33:7\n1000:1000\n3333:0\n1000\n"
        assert shown(runtime, context, base_image, text, command) == want
    else:
        with pytest.raises(SpecError, match=r"line 2: .*subordinate ids"):
            shown(runtime, context, base_image, text, command)


def test_triggers_of_a_base_run_in_the_build_from_it(
    runtime: hr.Runtime, context: Path, base_image: str
) -> None:
    (context / "Containerfile").write_text(
        f"FROM {base_image}\nONBUILD COPY a /triggered\nONBUILD RUN echo ran > /seen\nLABEL of=base\n"
    )
    base = REFERENCE.replace("steps", "trigger")
    runtime.images.build(base, containerfile=context / "Containerfile", force=True)
    try:
        text = "FROM BASE\nRUN cat /triggered >> /seen\n"
        assert shown(runtime, context, base, text) == "ran\n1"
    finally:
        runtime.images.remove(base)


def test_an_image_may_begin_with_nothing(
    runtime: hr.Runtime, context: Path, base_image: str
) -> None:
    text = "FROM scratch\nCOPY --from=BASE / /\nCOPY dir /only\n"
    command = "ls -A /only; stat -c %a /; ls /owner.json 2>/dev/null || echo none"
    assert shown(runtime, context, base_image, text, command) == ".dot\nin\n755\nnone\n"


@pytest.mark.parametrize(
    ("step", "error", "why"),
    [
        ("COPY none /x", SpecError, "line 2: COPY none /x.*does not exist"),
        ("COPY a /etc/passwd/x", SpecError, "/etc/passwd is not a directory"),
        ("COPY --chown=nobody-here a /x", SpecError, "no 'nobody-here' in /etc/passwd"),
        ("RUN echo why >&2; exit 3", ImageBuildError, r"the step `RUN echo why.*\n.*why"),
    ],
)
def test_a_step_that_fails_is_named(
    runtime: hr.Runtime,
    context: Path,
    base_image: str,
    step: str,
    error: type[Exception],
    why: str,
) -> None:
    with pytest.raises(error, match=why):
        shown(runtime, context, base_image, f"FROM BASE\n{step}\n")
    assert not runtime.images.exists(REFERENCE)


@pytest.fixture(scope="module")
def small_image(runtime: hr.Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image of a static busybox."""
    images = StoredImages(runtime.name)
    tar = tmp_path_factory.mktemp("small") / "base.tar"
    write_base(tar, Path(shutil.which("busybox") or "/bin/busybox"))
    images.load_rootfs(tar, BASE)
    yield BASE
    images.remove(BASE)


@pytest.mark.parametrize("seed", list(BUILDAH))
def test_images_are_those_of_buildah(
    runtime: hr.Runtime, small_image: str, tmp_path: Path, seed: str
) -> None:
    """The same kinds, modes, owners, targets, contents and configuration."""
    if not runtime.info.users:
        pytest.skip("files of other users need subordinate ids")
    _check_seed(runtime, tmp_path, seed)


@pytest.mark.parametrize("seed", list(BUILDAH)[:3])
def test_images_are_the_same_where_a_program_of_fuse_mounts_layers(
    runtime: hr.Runtime,
    small_image: str,
    tmp_path: Path,
    seed: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if runtime.name != "bubblewrap" or not runtime.info.users:
        pytest.skip("the engine mounts its files itself, or has one user here")
    if not (find_program(FUSE) and os.path.exists("/dev/fuse")):
        pytest.skip("fuse-overlayfs is not installed here")
    found = attrs.evolve(cached_probe()[0], storage=FUSE)
    monkeypatch.setattr("hyperruntime_bubblewrap.driver.cached_probe", lambda: (found, True))
    with hr.open_runtime("bubblewrap") as other:
        _check_seed(other, tmp_path, seed)


def _check_seed(runtime: hr.Runtime, tmp_path: Path, seed: str) -> None:
    known = BUILDAH[seed]
    write_context(tmp_path)
    (tmp_path / "Containerfile").write_text("\n".join(known["containerfile"]))
    if known["ignore"] is not None:
        (tmp_path / ".dockerignore").write_text("\n".join(known["ignore"]))
    for name in ("Containerfile", ".dockerignore"):
        if (tmp_path / name).exists():
            (tmp_path / name).chmod(0o644)
    runtime.images.build(REFERENCE, containerfile=tmp_path / "Containerfile", force=True)
    try:
        entry = Store().find(REFERENCE)
        assert entry is not None
        dump = ["unshare", *ALL_IDS, sys.executable, "-c", DUMP, str(Store().tree(entry))]
        shown = run_process(dump, env={**os.environ, "PYTHONPATH": os.getcwd()})
        assert shown.exit_code == 0, shown.error_text
        tree = json.loads(shown.stdout)
        found = digest_of(tree, entry.config.to_oci())
        assert found == known["digest"], (tree, entry.config)
    finally:
        runtime.images.remove(REFERENCE)
