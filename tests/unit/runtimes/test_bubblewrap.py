"""What bubblewrap shows of the host and of an image; the conformance suite checks the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hyperruntime import registry
from hyperruntime.driver import Launch
from hyperruntime.errors import ImageError, UnsupportedOptionError
from hyperruntime.layers.images import ImageSource
from hyperruntime.spec import ContainerSpec, Limits, Mount
from hyperruntime_bubblewrap.args import OWN_ETC, InContainer, _has_program, sandbox_args


def args_of(image: ImageSource | None = None, *, users: bool = False, **fields: Any) -> list[str]:
    launch = Launch(
        spec=ContainerSpec(**{"image": "host", **fields}),
        name="hyperruntime-1",
        labels={"a": "b"},
        exchange=Mount(source="/x", target="/run/hyperruntime"),
        private_dir="/private",
    )
    return sandbox_args(launch, "/files/root", image, users=users, filtered=True)


def binds(args: list[str], flag: str) -> list[tuple[str, str]]:
    return [(args[n + 1], args[n + 2]) for n, word in enumerate(args) if word == flag]


def test_only_programs_and_named_files_of_the_host_are_visible() -> None:
    args = args_of()
    assert binds(args, "--ro-bind") == [
        ("/usr", "/usr"),
        (f"{OWN_ETC}/hosts", "/etc/hosts"),
        ("/x", "/run/hyperruntime"),
    ]
    shown = {source for source, _ in binds(args, "--ro-bind-try")}
    assert "/etc/ld.so.cache" in shown
    assert not shown & {
        "/etc",
        "/etc/ssl",
        "/etc/ssl/private",
        "/etc/shadow",
        "/etc/ssh",
        "/etc/resolv.conf",
    }
    assert binds(args, "--bind") == []


def test_machine_specific_directories_below_usr_are_hidden(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    names = ("there", "link", "missing")
    monkeypatch.setattr(
        "hyperruntime_bubblewrap.args.HIDDEN", tuple(str(tmp_path / name) for name in names)
    )
    text = " ".join(args_of())
    hidden = f"--tmpfs {tmp_path}/there --remount-ro {tmp_path}/there"
    assert text.index("--ro-bind /usr /usr") < text.index(hidden)
    assert text.count(str(tmp_path)) == 2


def test_an_image_brings_its_files_variables_and_directory(tmp_path: Path) -> None:
    image = ImageSource(files=str(tmp_path), env={"PATH": "/own", "A": "b"}, workdir="/work")
    args = args_of(image, limits=Limits(pids=None))
    assert binds(args, "--bind") == [("/files/root", "/")]
    assert "/usr" not in [source for source, _ in binds(args, "--ro-bind")]
    assert set(binds(args, "--setenv")) == {("PATH", "/own"), ("HOME", "/root"), ("A", "b")}
    assert args[args.index("--chdir") + 1] == "/work"
    # Podman's builds do not make the image's own directory; another one must exist
    assert "/work" in directories(args)
    other = args_of(image, workdir="/other")
    assert other[other.index("--chdir") + 1] == "/other"
    assert "/other" not in directories(other)


def test_paths_in_an_image_are_marked_because_its_links_must_not_lead_out(tmp_path: Path) -> None:
    mount = Mount(source="/data", target="/var/run/data")
    args = args_of(ImageSource(files=str(tmp_path)), mounts=(mount,), network="host")
    unmarked = {word for word in args if word.startswith("/") and not isinstance(word, InContainer)}
    assert unmarked == {
        "/",
        "/files/root",
        f"{OWN_ETC}/hosts",
        "/etc/resolv.conf",
        "/etc/hosts",
        "/x",
        "/data",
        "/root",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "/bin/sh",
    }


@pytest.mark.parametrize("workdir", ["/proc/self/root/oldroot/x", "//dev/fd/9", "/a/../proc/1"])
def test_a_working_directory_of_an_image_is_none_that_is_mounted_later(
    tmp_path: Path, workdir: str
) -> None:
    """bwrap made it, through /proc, on the host: an archive that somebody sent has it."""
    with pytest.raises(ImageError, match="not a directory of its own"):
        args_of(ImageSource(files=str(tmp_path), workdir=workdir))


def test_a_link_in_a_mount_leads_no_other_mount_out_of_it(tmp_path: Path) -> None:
    """The container of an earlier start may have made it."""
    work = tmp_path / "work"
    (work / "deps").mkdir(parents=True)
    mounts = (
        Mount(source=str(work), target="/data", read_only=False),
        Mount(source=str(tmp_path), target="/data/deps/x"),
    )
    args_of(mounts=mounts)
    (work / "deps").rmdir()
    (work / "deps").symlink_to("/oldroot/home")
    with pytest.raises(UnsupportedOptionError, match="is a link"):
        args_of(mounts=mounts)


def test_a_layer_decides_about_setpriv_as_the_container_sees_it(tmp_path: Path) -> None:
    for name in ("image", "added", "linked"):
        (tmp_path / name / "usr/bin").mkdir(parents=True)
    (tmp_path / "added/usr/bin/setpriv").write_text("")
    (tmp_path / "linked/usr/bin/setpriv").symlink_to("busybox")
    trees = [str(tmp_path / name) for name in ("added", "image")]
    assert _has_program(trees, "/usr/bin/setpriv")
    assert not _has_program([str(tmp_path / "linked"), *trees], "/usr/bin/setpriv")
    assert not _has_program(trees[1:], "/usr/bin/setpriv")


def test_setpriv_of_an_image_is_used_if_it_is_a_real_one(tmp_path: Path) -> None:
    program = tmp_path / "usr/bin/setpriv"
    program.parent.mkdir(parents=True)
    image = ImageSource(files=str(tmp_path))
    assert "/usr/bin/setpriv" not in args_of(image, users=True)
    program.symlink_to("busybox")
    assert "/usr/bin/setpriv" not in args_of(image, users=True)
    program.unlink()
    program.write_text("")
    assert "--inh-caps=-all" in args_of(image, users=True)
    alone = args_of(image, users=False)
    assert alone[alone.index("--cap-add") + 1] == "CAP_SETPCAP"
    assert alone.count("--cap-add") == 1
    assert "--bounding-set=-all" in alone
    program.unlink()
    assert "--cap-add" not in args_of(image, users=False)


def directories(args: list[str]) -> set[str]:
    return {args[place + 1] for place, word in enumerate(args) if word == "--dir"}


def test_what_has_no_engine_is_chosen_last() -> None:
    assert registry.auto_order()[-2:] == ["bubblewrap", "charliecloud"]


def test_nothing_of_the_host_lies_below_a_mount_of_hosts() -> None:
    """The kernel takes a mount away when the file below it is replaced on the host."""
    mount = Mount(source="/own", target="/etc/hosts")
    for image in (None, ImageSource(files="/i", env={}, workdir="/", user="")):
        for network in ("none", "host"):
            args = args_of(image, mounts=[mount], network=network)
            assert [source for source, at in binds(args, "--ro-bind") if at == "/etc/hosts"] == [
                "/own"
            ]
            assert "/etc/hosts" not in [at for _, at in binds(args, "--ro-bind-try")]
