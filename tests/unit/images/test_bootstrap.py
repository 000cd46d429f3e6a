"""The base image's root filesystem: the arguments of mmdebstrap, and the errors for its
failures.
"""

from __future__ import annotations

import os
import re
import stat
import tarfile
import tempfile
from pathlib import Path

import pytest

from hyperruntime.errors import ImageBuildError
from hyperruntime.host.engine_program import ALL_IDS, ONE_ID
from hyperruntime.host.process import run_process
from hyperruntime.images import bootstrap

MIRROR = "http://mirror.example/debian"

FAKE = """#!/bin/sh
{body}
for last in "$@"; do case $last in *.tar) target=$last ;; esac; done
{{ printf '%s\\n' "$@"; env; }} > "$target.said"
echo "I: extracting archives..."
tar -c -f "$target" -T /dev/null
mv "$target.said" "{said}"
"""


@pytest.fixture
def fake_mmdebstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a fake mmdebstrap on PATH; return the file into which it writes its arguments and
    environment.
    """
    return install_fake(tmp_path, monkeypatch, body="")


def install_fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    programs, said = tmp_path / "programs", tmp_path / "said"
    programs.mkdir()
    program = programs / "mmdebstrap"
    program.write_text(FAKE.format(body=body, said=said))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(bootstrap, "_host_sources", lambda: [f"deb {MIRROR} bookworm main"])
    return said


def test_packages_suite_and_mirror_are_passed_to_mmdebstrap_and_its_progress_is_passed_on(
    fake_mmdebstrap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    lines: list[str] = []
    bootstrap.build_rootfs("base", tmp_path / "it's base.tar", lines.append)
    assert lines == ["I: extracting archives..."]
    assert tarfile.is_tarfile(tmp_path / "it's base.tar")
    said = fake_mmdebstrap.read_text().splitlines()
    wanted = ",".join(bootstrap.BASE_PACKAGES)
    assert any(re.fullmatch(rf"--include={wanted}(,usr-is-merged)?", line) for line in said)
    assert any(re.fullmatch(rf"deb .*{MIRROR} bookworm main", line) for line in said)
    assert "bookworm" in said
    assert "PYTHONPATH" not in "".join(said), "the settings of this Python reach the build"


def test_file_times_are_the_current_day_or_source_date_epoch(
    fake_mmdebstrap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    bootstrap.build_rootfs("base", tmp_path / "base.tar", print)
    match = re.search(r"^SOURCE_DATE_EPOCH=(\d+)$", fake_mmdebstrap.read_text(), re.MULTILINE)
    assert match is not None
    assert int(match[1]) % 86400 == 0
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000001")
    bootstrap.build_rootfs("base", tmp_path / "base.tar", print)
    assert "SOURCE_DATE_EPOCH=1700000001" in fake_mmdebstrap.read_text()


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("tar: out: Cannot write: No space left on device", "the disk is full"),
        (
            "W: Failed to fetch http://x/InRelease  Temporary failure resolving 'x'",
            "cannot be reached",
        ),
        (
            "E: Failed to fetch http://x/InRelease  Could not connect to x:80 (1.2.3.4)",
            "cannot be reached",
        ),
        (
            "E: unable to pick chroot mode automatically (use --mode for manual selection)",
            "user namespaces",
        ),
        ("E: newuidmap 123 0 100000 65536 failed", "usermod --add-subuids"),
        ("E: Unable to locate package nosuch", "check the package names"),
        (
            "Err:1 http://x bookwurm InRelease\\n  404  Not Found [IP: 1.2.3.4 80]",
            "check the package names",
        ),
        ("W: GPG error: http://x InRelease: NO_PUBKEY 0123", "debian-archive-keyring"),
        (
            "E: Release file for http://x/InRelease is not valid yet (invalid for another 3d)",
            "set the clock",
        ),
        ("E: something nobody has seen", "something nobody has seen"),
    ],
)
def test_a_failure_raises_a_one_line_error_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, expected: str
) -> None:
    (tmp_path / "output").write_text(
        output.replace("\\n", "\n") + "\nE: mmdebstrap failed to run\n"
    )
    install_fake(tmp_path, monkeypatch, body=f"cat '{tmp_path}/output' >&2; exit 25")
    with pytest.raises(ImageBuildError, match=re.escape(expected)) as caught:
        bootstrap.build_rootfs("base", tmp_path / "base.tar", print)
    assert "\n" not in str(caught.value)


def test_a_failure_without_output_names_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fake(tmp_path, monkeypatch, body="exit 9")
    with pytest.raises(ImageBuildError, match="exit code 9"):
        bootstrap.build_rootfs("base", tmp_path / "base.tar", print)


def test_a_missing_mmdebstrap_is_reported_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageBuildError, match="apt-get install mmdebstrap"):
        bootstrap.build_rootfs("base", tmp_path / "base.tar", print)


def test_an_apt_that_hangs_is_a_clear_error(
    fake_mmdebstrap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt = tmp_path / "programs" / "apt-config"
    apt.write_text("#!/bin/sh\nexec sleep 1000\n")
    apt.chmod(0o755)
    monkeypatch.setattr(bootstrap, "limit_s", lambda engine, verb: 0.2)
    with pytest.raises(
        ImageBuildError,
        match=r"apt-config ran past 0\.2 s and was ended; it hangs, or this machine",
    ):
        bootstrap.build_rootfs("base", tmp_path / "base.tar", print)
    assert not fake_mmdebstrap.exists()


def test_the_scratch_directory_is_accessible_to_the_namespace_and_is_removed() -> None:
    with bootstrap._work_directory() as work:
        assert stat.S_IMODE(work.stat().st_mode) == 0o755
        (work / "left").write_text("over")
    assert not work.exists()


def test_an_ordinary_users_build_avoids_a_tmpdir_that_its_namespace_cannot_enter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # pytest's own directories are private
        private, inner = Path(name), Path(name, "inner")
        inner.mkdir(mode=0o755)
        monkeypatch.setenv("TMPDIR", str(inner))
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        for mode, inside in ((0o711, True), (0o700, False)):
            private.chmod(mode)
            with bootstrap._work_directory() as work:
                assert work.is_relative_to(private) is inside


def test_a_tree_with_a_mount_in_it_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing such a tree also removes the mounted files; a killed build once did that to the
    host's /dev/shm.
    """
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted" / "precious").write_text("")
    monkeypatch.setattr(
        bootstrap, "mount_points_under", lambda path, mountinfo: [f"{path}/mounted"]
    )
    bootstrap._remove_tree(tmp_path)
    assert (tmp_path / "mounted" / "precious").exists()


def test_mount_points_below_a_directory_are_found(tmp_path: Path) -> None:
    base = tmp_path / "a b"
    base.mkdir()
    escaped = str(base).replace(" ", "\\040")
    mountinfo = (
        f"63 30 0:54 / {escaped}/dev/pts rw,nosuid - devpts none rw\n"
        f"64 30 0:27 / {escaped} rw - tmpfs tmpfs rw\n"
        f"65 30 0:27 / {escaped}-other rw - tmpfs tmpfs rw\n"
        "66 30 0:22 / /sys ro - sysfs sys rw\n"
    )
    assert bootstrap.mount_points_under(base, mountinfo) == [f"{base}/dev/pts", str(base)]


@pytest.mark.skipif(
    os.geteuid() != 0, reason="an ordinary user's builds make namespaces themselves"
)
def test_a_failed_build_as_root_leaves_no_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = (
        f"mkdir '{tmp_path}/mnt'; mount -t tmpfs none '{tmp_path}/mnt' && touch "
        f"'{tmp_path}/ok'; exit 25"
    )
    install_fake(tmp_path, monkeypatch, body=body)
    with pytest.raises(ImageBuildError):
        bootstrap.build_rootfs("base", tmp_path / "base.tar", print)
    assert (tmp_path / "ok").exists() == bool(bootstrap._namespaces()[0])
    assert bootstrap.mount_points_under(tmp_path, Path("/proc/self/mountinfo").read_text()) == []


def test_without_subordinate_ids_all_files_are_of_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = bootstrap._works
    if not works(("unshare", *ONE_ID)):
        pytest.skip("this user can make no user namespace")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(
        bootstrap, "_works", lambda args: not set(ALL_IDS) <= set(args) and works(args)
    )
    for_group = f"touch '{tmp_path}/file'; chown 0:42 '{tmp_path}/file' || exit 1"
    said = install_fake(tmp_path, monkeypatch, body=for_group)
    bootstrap.build_rootfs("base", tmp_path / "base.tar", print)
    assert "--mode=root" in said.read_text().splitlines()
    assert (tmp_path / "file").stat().st_gid == os.getgid()


def test_the_mirrors_of_the_host_are_used_for_any_suite() -> None:
    lines = [
        "Debian|http://local/debian/|bookworm|main",
        "Debian|http://local/debian/|bookworm|contrib",
        "Debian|http://local/debian/|bookworm-updates|main",
        "Debian|http://local/security/|bookworm-security|main",
        "Debian Backports|http://local/debian/|bookworm-backports|main",
        "Elsewhere|http://third.party/|bookworm|main",
        "",
    ]
    assert bootstrap.parse_index_targets(lines, "trixie") == [
        "deb http://local/debian/ trixie main",
        "deb http://local/debian/ trixie-updates main",
        "deb http://local/security/ trixie-security main",
    ]


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["Ubuntu|http://archive.example/ubuntu/|jammy|main"],
        ["Debian|http://local/security/|bookworm-security|main"],
    ],
)
def test_a_host_without_a_debian_mirror_gives_no_sources(lines: list[str]) -> None:
    assert bootstrap.parse_index_targets(lines, "bookworm") == []


def test_dpkg_leaves_out_compilers_only_in_science(fake_mmdebstrap: Path, tmp_path: Path) -> None:
    for name in ("base", "science"):
        bootstrap.build_rootfs(name, tmp_path / f"{name}.tar", print)
        lines = fake_mmdebstrap.read_text().splitlines()
        setup = next(line for line in lines if line.startswith("--setup-hook=") and "dpkg" in line)
        run_hook(setup.removeprefix("--setup-hook="), tmp_path / name)
        options = (tmp_path / name / "etc/dpkg/dpkg.cfg.d/hyperruntime").read_text().splitlines()
        assert "path-include=/usr/share/doc/*/copyright" in options
        assert ("path-exclude=/usr/include/*" in options) == (name == "science")


def test_the_image_contains_no_settings_of_the_host(fake_mmdebstrap: Path, tmp_path: Path) -> None:
    """The last hooks, run on a directory that looks like the image before them."""
    bootstrap.build_rootfs("base", tmp_path / "base.tar", print)
    root = tmp_path / "root"
    for name in (
        "etc/apt/apt.conf.d/99mmdebstrap",
        "etc/dpkg/dpkg.cfg.d/hyperruntime",
        "etc/resolv.conf",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("of the host\n")
    for name in (
        "usr/share/doc/git/copyright",
        "usr/share/doc/git/README",
        "usr/share/man/man1/git.1",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("text\n")
    hooks = [
        line.removeprefix("--customize-hook=") for line in fake_mmdebstrap.read_text().splitlines()
    ]
    for hook in (
        hook
        for hook in hooks
        if hook.startswith(("find", "rm", "mkdir")) and "sources.list" not in hook
    ):
        run_hook(hook, root)
    run_hook(bootstrap._WRITE_SOURCES, root)
    left = {
        str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()
    }
    assert MIRROR not in "".join(left.values())
    assert "of the host" not in "".join(left.values())
    assert left["etc/resolv.conf"] == ""
    assert (
        left["etc/apt/sources.list"].splitlines()[0]
        == "deb http://deb.debian.org/debian bookworm main"
    )
    assert sorted(name for name in left if name.startswith("usr/")) == [
        "usr/share/doc/git/copyright"
    ]


def run_hook(hook: str, root: Path) -> None:
    result = run_process(["sh", "-c", hook, "exec", str(root)])
    assert result.exit_code == 0, result.stderr


def test_the_containerfile_installs_the_same_packages() -> None:
    text = Path(__file__).parents[3].joinpath("containers/base/Containerfile").read_text()
    installed = re.search(r"--no-install-recommends \\\n(?P<names>(?: +[a-z0-9.-]+ \\\n)+)", text)
    assert installed is not None
    assert installed["names"].replace("\\", "").split() == list(bootstrap.BASE_PACKAGES)
