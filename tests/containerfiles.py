"""Containerfiles from a seed, and the tree of an image as data, to compare builders."""

from __future__ import annotations

import hashlib
import io
import json
import os
import posixpath
import random
import stat
import tarfile
from pathlib import Path

BASE = "localhost/hyperruntime-test/small:latest"
PLACES = (
    "/opt/x",
    "/opt/x/",
    "new",
    "new/",
    "/data/dir",
    "/data/dir/",
    "/linked/",
    "/linked/z",
    "/data/file",
    "/srv/f",
    "/linked",
)
SOURCES = (
    "a.txt", "b.txt", ".hidden", "dir", "dir/", "dir/sub", "link", "dirlink", "*.txt", "dir/*", "d?r",
    "[ab].txt", "dir/.*", "run.sh", "read-only", ".", "./dir/x", "/b.txt", "*",
)  # fmt: skip
IGNORES = (
    "*.txt", "!a.txt", "dir", "dir/*", "!dir/sub", "**/deep.txt", "/b.txt", ".hidden", "# comment", "dir/sub/",
    "!dir/sub/deep.txt", "**/*.sh", "d*", "!dir/x", "",
)  # fmt: skip
COMMANDS = (
    "env | sort | grep -v -e ^HOME= -e ^PWD= -e ^SHLVL= -e ^OLDPWD= -e ^BUILDAH -e ^HOSTNAME= -e ^_= > /env-{n}",
    "pwd > /pwd-{n}",
    "rm -rf /data/dir",
    "rm -f /data/file && mkdir /data/file && touch /data/file/in",
    "mkdir -p /opt/x && chmod 700 /opt/x && echo {n} > /opt/x/made-{n}",
    "mkdir -p /opt && ln -sf /data/dir /opt/link-{n}",
    "rm -rf /data/dir && mkdir /data/dir && echo new > /data/dir/n",
    "chmod 4755 /data/file 2>&1 || true",
    "mv /data /moved-{n}",
    "echo $A ${{B:-none}} > /values-{n}",
    "umask > /umask-{n}",
    "ls -a / > /listed-{n}.tmp && rm /listed-{n}.tmp",
    "[\"/bin/sh\", \"-c\", \"echo list > /list-{n}\"]",
    "echo one \\\n    two \\\n# comment\n    three > /joined-{n}",
    "ln /data/file /hard-{n}",
)  # fmt: skip
VALUES = (
    "plain", '"two words"', "'single $A'", "$A", "${A}x", "${B:-fall}", "${A:+set}", "${B:+set}", "a\\ b", '"q\\"q"',
    "\\$A", "http://h/?x=1&y=2#z", '"${B:-a b}"', "", "x=y", '{"k":1}', "*.py", "${A:-${B}}",
)  # fmt: skip


CONFIGURED = (
    *("Entrypoint", "Cmd", "ExposedPorts", "Volumes", "StopSignal"),
    *("Healthcheck", "Labels", "Shell"),
)
KINDS = (
    *("run", "run", "run", "copy", "copy", "copy", "copy", "env", "env"),
    *("arg", "workdir", "from", "add", "config", "chmod", "owner"),
)
CONFIG = (
    'CMD ["a", "b"]', "CMD echo $A", 'ENTRYPOINT ["x"]', "ENTRYPOINT run this", "EXPOSE 80 443/udp",
    "VOLUME /data/dir", 'VOLUME ["/v 1"]', "STOPSIGNAL SIGINT", 'LABEL a={} "b c"={}',
    'SHELL ["/bin/sh", "-ec"]', "HEALTHCHECK --interval=5s --retries=2 CMD true", "HEALTHCHECK NONE",
    "LABEL old some words",
)  # fmt: skip


def write_context(folder: Path) -> None:
    """Write the files of a build context."""
    for name, text in {
        "a.txt": "a", "b.txt": "b", ".hidden": "h", "dir/x": "x", "dir/y": "y", "dir/.dot": "d",
        "dir/sub/deep.txt": "deep", "run.sh": "#!/bin/sh\n", "read-only": "r", "plain.gz": "no archive",
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "link").symlink_to("a.txt")
    (folder / "dirlink").symlink_to("dir")
    (folder / "dir/inner").symlink_to("x")
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    (folder / "run.sh").chmod(0o755)
    (folder / "read-only").chmod(0o444)
    (folder / "dir/sub").chmod(0o750)
    with tarfile.open(folder / "arch.tar.gz", "w:gz") as tar:
        for name, mode in (("t/one", 0o640), ("t/two", 0o755), ("dir2/three", 0o600)):
            member = tarfile.TarInfo(name)
            member.mode = mode
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("t/link")
        link.type = tarfile.SYMTYPE
        link.linkname = "one"
        tar.addfile(link)
    (folder / "arch.tar.gz").chmod(0o644)


def write_base(tar: Path, busybox: Path) -> None:
    """Write the root file system of a small image."""
    with tarfile.open(tar, "w") as file:
        for name, mode in (
            ("bin", 0o755), ("etc", 0o755), ("data", 0o755), ("data/dir", 0o750), ("data/dir/deep", 0o755),
            ("tmp", 0o1777), ("var", 0o755), ("var/tmp", 0o1777), ("run", 0o755), ("proc", 0o755), ("sys", 0o755),
            ("dev", 0o755), ("root", 0o700),
        ):  # fmt: skip
            one = tarfile.TarInfo(name)
            one.type = tarfile.DIRTYPE
            one.mode = mode
            file.addfile(one)
        for name, text, mode in (
            ("data/file", b"file", 0o644), ("data/dir/old", b"old", 0o644), ("data/dir/deep/er", b"er", 0o600),
            ("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n", 0o644),
            ("etc/group", b"root:x:0:\nuser:x:1000:\n", 0o644), ("etc/hosts", b"", 0o644), ("etc/hostname", b"", 0o644),
            ("etc/resolv.conf", b"", 0o644), ("bin/busybox", busybox.read_bytes(), 0o755),
        ):  # fmt: skip
            one = tarfile.TarInfo(name)
            one.mode = mode
            one.size = len(text)
            file.addfile(one, io.BytesIO(text))
        names = "sh ls cat rm mkdir chmod ln mv echo env sort grep touch stat id chown pwd test true".split()
        for name, target in (
            ("linked", "data/dir"),
            *((f"bin/{name}", "busybox") for name in names),
        ):
            one = tarfile.TarInfo(name)
            one.type = tarfile.SYMTYPE
            one.linkname = target
            file.addfile(one)


def write_containerfile(folder: Path, seed: int) -> None:
    """Write a Containerfile, and maybe an ignore file, that a seed chooses."""
    rng = random.Random(seed)
    write_context(folder)
    if rng.random() < 0.3:
        lines = rng.sample(IGNORES, rng.randint(1, 5))
        (folder / ".dockerignore").write_text("\n".join(lines) + "\n")
    text = f"ARG BASE={BASE}\nARG A=outside\n"
    stages = rng.choice((1, 1, 2, 3))
    for stage in range(stages):
        base = (
            "${BASE}"
            if not stage or rng.random() < 0.6
            else rng.choice([f"s{n}" for n in range(stage)])
        )
        text += f"FROM {base} AS s{stage}\n"
        for number in range(rng.randint(2, 7)):
            text += _Writer(rng, stage, stage * 10 + number).line()
    (folder / "Containerfile").write_text(text)


class _Writer:
    """Writes the instructions of one stage."""

    def __init__(self, rng: random.Random, stage: int, number: int) -> None:
        self._rng = rng
        self._stage = stage
        self._number = number

    def line(self) -> str:
        """Return an instruction."""
        kind = self._rng.choice(KINDS)
        if kind == "from" and not self._stage:
            kind = "config"
        text: str = getattr(self, f"_{kind}")()
        return f"{text}\n"

    def _value(self) -> str:
        return self._rng.choice(VALUES)

    def _name(self) -> str:
        return self._rng.choice(("A", "B", "C", "LONG_NAME"))

    def _run(self) -> str:
        return f"RUN {self._rng.choice(COMMANDS).format(n=self._number)}"

    def _copy(self) -> str:
        several = self._rng.random() < 0.2
        sources = " ".join(self._rng.sample(SOURCES, 2 if several else 1))
        ends = several or set("*?[") & set(sources)
        places = [one for one in PLACES if one.endswith("/")] if ends else PLACES
        return f"COPY {sources} {self._rng.choice(places)}"

    def _owner(self) -> str:
        owner = self._rng.choice(("user", "1000:1000", "user:root", "7", "0:0"))
        source = self._rng.choice(("a.txt", "dir", "run.sh"))
        return f"COPY --chown={owner} {source} {self._rng.choice(PLACES)}"

    def _chmod(self) -> str:
        mode = self._rng.choice(("755", "640", "0600", "4755"))
        source = self._rng.choice(("a.txt", "dir", "run.sh"))
        return f"COPY --chmod={mode} {source} {self._rng.choice(PLACES)}"

    def _from(self) -> str:
        origin = self._rng.randrange(self._stage)
        which = self._rng.choice((str(origin), f"s{origin}"))
        source = self._rng.choice(("/data", "/data/file", "/etc/passwd", "/linked", "/data/dir/"))
        return f"COPY --from={which} {source} {self._rng.choice(PLACES)}"

    def _env(self) -> str:
        if self._rng.random() < 0.2:
            return f"ENV {self._name()} some 'text' $A {self._value()}"
        pairs = (f"{self._name()}={self._value()}" for _ in range(self._rng.randint(1, 3)))
        return "ENV " + " ".join(pairs)

    def _arg(self) -> str:
        return f"ARG {self._name()}{self._rng.choice(('', f'={self._value()}'))}"

    def _workdir(self) -> str:
        places = ("/work", "sub", "../up", "/linked", "/data/$A", "/a//b/")
        return f"WORKDIR {self._rng.choice(places)}"

    def _add(self) -> str:
        source = self._rng.choice(("arch.tar.gz", "plain.gz", "a.txt", "dir"))
        return f"ADD {source} {self._rng.choice(PLACES)}"

    def _config(self) -> str:
        values = self._value(), self._value()
        return self._rng.choice(CONFIG).format(*values)


def tree_of(root: Path) -> dict[str, list[object]]:
    """Return the kind, mode, owner and content of each path of a tree."""
    found: dict[str, list[object]] = {}
    for folder, directories, files in os.walk(root):
        directories.sort()
        for name in sorted((*directories, *files)):
            path = os.path.join(folder, name)
            shown = os.path.relpath(path, root)
            status = os.lstat(path)
            content = ""
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                content = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
            mode = "" if stat.S_ISLNK(status.st_mode) else f"{stat.S_IMODE(status.st_mode):o}"
            kind = stat.S_IFMT(status.st_mode)
            found[shown] = [kind, mode, status.st_uid, status.st_gid, content]
    return found


def digest_of(tree: dict[str, list[object]], config: dict[str, object]) -> str:
    """Return a digest of an image; builders differ about variables' order and what is beside it."""
    shown = {
        path: facts[:4] if path == "bin/busybox" else facts
        for path, facts in tree.items()
        if not path.startswith(".singularity.d")
    }
    kept = {name: config[name] for name in CONFIGURED if config.get(name)}
    kept["Env"] = sorted(config["Env"])  # type: ignore[call-overload]
    kept["WorkingDir"] = posixpath.normpath(str(config.get("WorkingDir") or "/"))
    labels = kept.get("Labels")
    if isinstance(labels, dict):
        kept["Labels"] = {name: labels[name] for name in labels if "buildah" not in name}
    kept = {name: value for name, value in kept.items() if value}
    return hashlib.sha256(json.dumps([shown, kept], sort_keys=True).encode()).hexdigest()[:16]
