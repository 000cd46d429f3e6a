"""Repositories that somebody else made: no setting in them makes git on the host run a program."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hyperruntime.errors import RepositoryError
from hyperruntime.git.command import try_git
from hyperruntime.git.foreign_files import RAW_ATTRIBUTES
from hyperruntime.git.store import RepositoryStore
from hyperruntime.rollout import origins
from tests.machine.git.plain_git import CALM, EDITOR

PARTIAL = (
    "core.repositoryFormatVersion=1", "extensions.partialClone=e", "remote.e.promisor=true",
    "remote.e.partialCloneFilter=blob:none",
)  # fmt: skip
# Settings by what they configure; PROGRAM is a program that leaves a mark.
SETTINGS: dict[str, tuple[str, ...]] = {
    "promisor": (*PARTIAL, "remote.e.url=/", "remote.e.uploadpack=PROGRAM"),
    "promisor by ssh": (*PARTIAL, "remote.e.url=ssh://x/y", "core.sshCommand=PROGRAM"),
    "promisor by git": (*PARTIAL, "remote.e.url=git://localhost/y", "core.gitProxy=PROGRAM"),
    "promisor by a helper": (*PARTIAL, "remote.e.url=ext::PROGRAM", "protocol.ext.allow=always"),
    "promisor by its vcs": (
        *PARTIAL,
        "remote.e.url=x",
        "remote.e.vcs=PROGRAM",
        "protocol.allow=always",
    ),
    "promisor instead": (
        *PARTIAL,
        "remote.e.url=x:",
        "url.ssh://x/.insteadOf=x:",
        "core.sshCommand=PROGRAM",
    ),
    "filter": (
        "filter.evil.clean=PROGRAM",
        "filter.evil.smudge=PROGRAM",
        "filter.evil.process=PROGRAM",
    ),
    "diff": ("diff.external=PROGRAM", "diff.evil.textconv=PROGRAM", "diff.evil.command=PROGRAM"),
    "merge": ("merge.evil.driver=PROGRAM", "merge.default=evil"),
    "monitor": ("core.fsmonitor=PROGRAM", "core.useBuiltinFSMonitor=true"),
    "hooks": ("core.hooksPath=HOOKS",),
    "alternates": ("core.alternateRefsCommand=PROGRAM",),
    "pagers": (
        "core.pager=PROGRAM",
        "pager.status=PROGRAM",
        "pager.config=PROGRAM",
        "core.editor=PROGRAM",
    ),
    "secrets": (
        "credential.helper=!PROGRAM",
        "core.askPass=PROGRAM",
        "gpg.program=PROGRAM",
        "log.showSignature=true",
    ),
    "trailers": ("trailer.x.command=PROGRAM", "trailer.x.cmd=PROGRAM", "trailer.x.key=x"),
    "aliases": ("alias.status=!PROGRAM", "alias.rev-parse=!PROGRAM", "alias.pack-objects=!PROGRAM"),
    "upload": ("uploadpack.packObjectsHook=PROGRAM", "receive.procReceiveRefs=refs"),
    "submodules": (
        "submodule.s.update=!PROGRAM",
        "submodule.recurse=true",
        "fetch.recurseSubmodules=true",
    ),
    "archives": ("tar.tgz.command=PROGRAM",),
    "included": ("include.path=INCLUDED",),
    "worktree": ("extensions.worktreeConfig=true",),
}


# A missing object matters where git could fetch it.
CASES = [
    (kind, missing)
    for kind in SETTINGS
    for missing in (("HEAD", "HEAD:agent.py", "") if kind.startswith("promisor") else ("",))
]


class Host:
    """The host: a directory with a program that leaves a mark."""

    def __init__(self, folder: Path) -> None:
        self._mark, self._program, self._hooks = (
            folder / "mark",
            folder / "program",
            folder / "hooks",
        )
        self._included = folder / "included"
        # a fetch waits for its answer
        self._program.write_text(f"#!/bin/sh\ntouch '{self._mark}'\ntimeout 1 cat\n")
        self._program.chmod(0o755)
        self._hooks.mkdir()
        for name in (
            "post-checkout",
            "reference-transaction",
            "post-index-change",
            "pre-auto-gc",
            "fsmonitor-watchman",
        ):
            shutil.copy(self._program, self._hooks / name)
        self._included.write_text(
            f"[core]\n\tfsmonitor = {self._program}\n\tsshCommand = {self._program}\n"
        )

    def configure(self, git_dir: Path, settings: tuple[str, ...]) -> None:
        """Write settings to a repository."""
        for setting in settings:
            key, _, value = setting.partition("=")
            for name, path in (
                ("PROGRAM", self._program),
                ("HOOKS", self._hooks),
                ("INCLUDED", self._included),
            ):
                value = value.replace(name, str(path))
            subprocess.run(
                ["git", "config", "--file", git_dir / "config", key, value], env=CALM, check=True
            )
        shutil.copy(self._included, git_dir / "config.worktree")

    def check(self) -> None:
        """Check that no program was run."""
        assert not self._mark.exists()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "host").mkdir()
    return Host(tmp_path / "host")


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """Make an agent repository whose files have the attributes that the settings are for."""
    root = tmp_path / "agent"
    root.mkdir()
    (root / "agent.py").write_text("pass\n")
    (root / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    for command in (["init", "-q"], ["add", "--all"], ["commit", "-qm", "agent"]):
        subprocess.run(["git", *command], cwd=root, env=CALM | EDITOR, check=True)
    return root


def lose_object(git_dir: Path, name: str) -> None:
    (git_dir / "objects" / name[:2] / name[2:]).unlink()


def name_of(repository: Path, revision: str) -> str:
    done = subprocess.run(
        ["git", "rev-parse", revision],
        cwd=repository,
        env=CALM,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize(("kind", "missing"), CASES)
def test_an_agent_repository_runs_no_program_on_the_host(
    kind: str, missing: str, agent: Path, host: Host, tmp_path: Path
) -> None:
    if missing:
        lose_object(agent / ".git", name_of(agent, missing))
    host.configure(agent / ".git", SETTINGS[kind])
    os.utime(agent / "agent.py")
    store = RepositoryStore(tmp_path / "store.git")
    if missing or kind.startswith("promisor"):
        with pytest.raises(RepositoryError) as caught:
            store.add_repository(agent)
        assert "\n" not in str(caught.value)
    else:
        store.checkout(store.add_repository(agent), tmp_path / "clone")
    host.check()


def git_version() -> tuple[int, ...]:
    """Return the version of the git on PATH, such as (2, 39, 5)."""
    words = subprocess.run(
        ["git", "version"], check=True, capture_output=True, text=True
    ).stdout.split()
    return tuple(int(part) for part in words[2].split(".") if part.isdigit())


# Each of two guards must hold without the other; an old git knows only the second one,
# GIT_ALLOW_PROTOCOL.
WITHOUT_ONE: dict[str, dict[str, str]] = {
    "both": {},
    "only no lazy fetch": {"GIT_ALLOW_PROTOCOL": "file:git:ssh:ext"},
    "only no protocol": {"GIT_NO_LAZY_FETCH": "0"},
}


@pytest.mark.parametrize("env", WITHOUT_ONE.values(), ids=WITHOUT_ONE.keys())
@pytest.mark.parametrize("kind", [kind for kind in SETTINGS if kind.startswith("promisor")])
def test_git_fetches_no_missing_object_also_where_a_partial_clone_is_not_refused(
    kind: str, env: dict[str, str], agent: Path, host: Host
) -> None:
    """A repository is looked at before it is refused."""
    if env == WITHOUT_ONE["only no lazy fetch"] and git_version() < (2, 39, 4):
        pytest.skip("NOT RUN: this git is older than 2.39.4 and does not know GIT_NO_LAZY_FETCH")
    name = name_of(agent, "HEAD:agent.py")
    lose_object(agent / ".git", name)
    host.configure(agent / ".git", SETTINGS[kind])
    assert try_git(["-C", str(agent), "cat-file", "blob", name], env=env).exit_code != 0
    host.check()


@pytest.mark.parametrize(
    "setting", ["extensions.partialClone", "remote.e.promisor", "remote.e.partialCloneFilter"]
)
def test_a_partial_clone_is_refused_by_name(setting: str, agent: Path, tmp_path: Path) -> None:
    subprocess.run(
        ["git", "config", "core.repositoryFormatVersion", "1"], cwd=agent, env=CALM, check=True
    )
    subprocess.run(["git", "config", setting, "true"], cwd=agent, env=CALM, check=True)
    with pytest.raises(
        RepositoryError, match=rf"partial clone \({setting.lower()} is set\).* without --filter"
    ):
        RepositoryStore(tmp_path / "store.git").add_repository(agent)


@pytest.mark.parametrize(("kind", "missing"), CASES)
def test_a_repository_of_an_item_runs_no_program_on_the_host(
    kind: str, missing: str, agent: Path, host: Host, tmp_path: Path
) -> None:
    commit = name_of(agent, "HEAD")
    if missing:
        lose_object(agent / ".git", name_of(agent, missing))
    host.configure(agent / ".git", SETTINGS[kind])
    if missing == "":
        assert origins.default_commit(str(agent), 60) == commit
        origins.fetch(str(agent), commit, str(tmp_path / "fetched.git"), 60)
    else:
        with pytest.raises(RepositoryError):
            origins.fetch(str(agent), commit, str(tmp_path / "fetched.git"), 60)
    host.check()


@pytest.mark.parametrize("kind", [kind for kind in SETTINGS if kind.startswith("promisor")])
def test_a_repository_of_an_item_fetches_nothing_also_if_git_itself_would(
    kind: str, agent: Path, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old git does not know GIT_NO_LAZY_FETCH, and serves a partial clone with what it
    fetches.
    """
    monkeypatch.setitem(origins._ENVIRONMENT, "GIT_NO_LAZY_FETCH", "0")
    commit = name_of(agent, "HEAD")
    lose_object(agent / ".git", name_of(agent, "HEAD:agent.py"))
    host.configure(agent / ".git", SETTINGS[kind])
    with pytest.raises(RepositoryError):
        origins.fetch(str(agent), commit, str(tmp_path / "fetched.git"), 60)
    host.check()


USES: dict[str, Callable[[RepositoryStore, str, Path], object]] = {
    "checkout": lambda store, root, folder: store.checkout(root, folder / "clone"),
    "export": lambda store, root, folder: store.export(root, folder / "files"),
    "snapshot": lambda store, root, folder: store.snapshot(root, folder, 1),
    "diff": lambda store, root, _: store.apply_patch(
        root, b"--- a/x\n+++ b/x\n@@ -0,0 +1 @@\n+x\n", 1
    ),
    "read": lambda store, root, _: store.read_file(root, "agent.py"),
    "find": lambda store, root, _: store.commit_of(1),
    "recover": lambda store, root, _: store.recover(),
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_the_repository_of_a_received_run_is_refused_and_runs_no_program(
    settings: tuple[str, ...], agent: Path, host: Host, tmp_path: Path
) -> None:
    store = RepositoryStore(tmp_path / "store.git")
    root = store.add_repository(agent)
    for path in (tmp_path / "store.git" / "objects" / "pack").iterdir():
        path.unlink()  # so that git looks for the commit elsewhere
    host.configure(tmp_path / "store.git", settings)
    (tmp_path / "store.git" / "config.worktree").unlink()
    (tmp_path / "empty").mkdir()
    for use in USES.values():
        with pytest.raises(
            RepositoryError, match=r"was changed by another program: its config has the line"
        ) as caught:
            use(RepositoryStore(tmp_path / "store.git"), root, tmp_path / "empty")
        assert "\n" not in str(caught.value)
    host.check()


def link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def add_lines(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text + '[remote "e"]\n\tpromisor = true\n')


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "another common directory": (
        lambda git: (git / "commondir").write_text("/x\n"),
        "the file commondir",
    ),
    "a second configuration": (
        lambda git: (git / "config.worktree").touch(),
        "the file config.worktree",
    ),
    "borrowed objects": (
        lambda git: (git / "objects/info/alternates").touch(),
        "the file objects/info/alternates",
    ),
    "other ignore rules": (lambda git: (git / "info/exclude").touch(), "the file info/exclude"),
    "other parents": (lambda git: (git / "info/grafts").touch(), "the file info/grafts"),
    "slow attributes": (
        lambda git: (git / "info/attributes").write_text("**/a/**/a text"),
        "its info/attributes is",
    ),
    "a linked configuration": (lambda git: link(git / "config"), "its config cannot be read"),
    "a pipe as configuration": (
        lambda git: pipe(git / "config"),
        "its config cannot be read: it is a named pipe",
    ),
    "no configuration": (
        lambda git: (git / "config").unlink(),
        "does not have the line 'bare = true'",
    ),
    "a setting after a blank line": (
        lambda git: add_lines(git / "config", "\n"),
        r"the line '\[remote",
    ),
    "a setting after many": (
        lambda git: add_lines(git / "config", "\n" * 5000),
        "its config cannot be read: it has .* at most 4.* are read",
    ),
    "many attributes": (
        lambda git: (git / "info/attributes").write_text(RAW_ATTRIBUTES + "\n" * 5000),
        "its info/attributes cannot be read: it has .* at most 4.* are read",
    ),
    "a linked packs' directory": (
        lambda git: link(git / "objects/pack"),
        "its 'objects/pack' is a link",
    ),
    "a linked list of packs": (
        lambda git: link(git / "objects/info"),
        "its 'objects/info' is a link",
    ),
    "linked branches": (lambda git: link(git / "refs/heads"), "its 'refs/heads' is a link"),
    "linked generations": (
        lambda git: link(git / "refs/hyperruntime"),
        "its 'refs/hyperruntime' is a link",
    ),
    "a linked temporary directory": (lambda git: link(git / "tmp"), "its 'tmp' is a link"),
    "a link to nothing": (
        lambda git: (git / "tmp/x").symlink_to("nothing"),
        "its 'tmp/x' is a link",
    ),
    "a linked shallow": (lambda git: link(git / "shallow"), "its 'shallow' is a link"),
    "a pipe as HEAD": (lambda git: pipe(git / "HEAD"), "its 'HEAD' is not a regular file"),
    "a pipe as packed-refs": (
        lambda git: os.mkfifo(git / "packed-refs"),
        "its 'packed-refs' is not a regular file",
    ),
    "linked objects": (lambda git: link(git / "objects"), "objects is not a directory"),
    "linked references": (lambda git: link(git / "refs"), "refs is not a directory"),
    "a link": (link, "it is not a directory"),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES.keys())
def test_a_repository_with_files_of_another_program_is_refused_by_name(
    change: Callable[[Path], object], message: str, agent: Path, tmp_path: Path
) -> None:
    store = RepositoryStore(tmp_path / "store.git")
    root = store.add_repository(agent)
    change(tmp_path / "store.git")
    for use in ("checkout", "find", "recover"):
        with pytest.raises(RepositoryError, match=message):
            USES[use](RepositoryStore(tmp_path / "store.git"), root, tmp_path)


@pytest.mark.parametrize("name", ["", "info", "shallow", "tmp"])
def test_a_new_store_is_not_written_through_a_link(name: str, agent: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "store.git" / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(tmp_path / "elsewhere" / ("file" if name == "shallow" else ""))
    with pytest.raises(RepositoryError, match=r"is a link|is not a directory"):
        RepositoryStore(tmp_path / "store.git").add_repository(agent)
    assert list((tmp_path / "elsewhere").iterdir()) == []
