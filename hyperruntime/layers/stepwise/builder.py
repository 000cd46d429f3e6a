"""Build images without a builder: each step is a command in a container, or a change of files, and
makes a layer, which later builds find by the digest of all that it depends on.

The layers of the last stage become one tree in the store.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import posixpath
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import attrs

from hyperruntime.errors import (
    FULL,
    HyperRuntimeError,
    ImageBuildError,
    SpecError,
    StorageFullError,
)
from hyperruntime.host.engine_program import ALL_IDS, ONE_ID
from hyperruntime.host.inherited import english_environment
from hyperruntime.host.owner import owned_directory
from hyperruntime.host.process import python_args, run_process
from hyperruntime.host.temporary import STEP, scratch_directory
from hyperruntime.images.building.context import Context
from hyperruntime.images.building.read import Containerfile
from hyperruntime.images.building.sources import resolve
from hyperruntime.images.building.steps import BuildMount, Copy, Run, Step, Workdir
from hyperruntime.images.dockerfile import refuse
from hyperruntime.layers.archive import ENV_FILE, architecture
from hyperruntime.layers.config import ImageConfig
from hyperruntime.layers.namespace import Layers
from hyperruntime.layers.scratch import remove_tree
from hyperruntime.layers.snapshots.freezing import forget
from hyperruntime.layers.snapshots.snapshot import new_snapshot
from hyperruntime.layers.stepwise.build_cache import BuildCache
from hyperruntime.layers.stepwise.file_program import OPAQUE
from hyperruntime.layers.store import ROOTFS, Store
from hyperruntime.layers.unpack import LayerTree
from hyperruntime.spec import ContainerSpec, ExecResult, Limits, Mount

# Part of each digest. Raise it when the same step then makes other files.
_FORMAT = "2"
_MOST_PATHS = 3000  # bytes of the paths of layers; all options of a mount have one page
_MOST_LINE = 1 << 16  # of output; longer ones are passed on in parts
_ENTER = 'umask 022; [ -d "$0" ] || mkdir -p -- "$0"; cd -P -- "$0" && exec "$@"'
_SCRIPT = "/.hyperruntime-step"
# What engines mount in each container; mount points that a step made for them are no part of it.
_MOUNTED = (
    "/run/hyperruntime", "/etc/hosts", "/etc/resolv.conf", "/dev/shm", "/proc", "/sys",  # noqa: S108
)  # fmt: skip


class StepContainer(Protocol):
    """A container in which a step runs."""

    def exec(self, args: list[str], **options: Any) -> ExecResult:  # noqa: ANN401 - of Container
        """Run a command."""
        ...

    def end_as_layers(self) -> tuple[str, ...]:
        """End it, and keep its files."""
        ...


@attrs.frozen(kw_only=True)
class Base:
    """An image from which a stage begins, or files are copied.

    Attributes:
        tree: the directory of its files.
        id: its identifier.
        config: what it says about its commands.
    """

    tree: str
    id: str
    config: ImageConfig


@attrs.frozen(kw_only=True)
class Means:
    """What a build uses of an engine.

    Attributes:
        engine: the name of its driver.
        start: starts a container.
        users: whether files may have other owners than root.
        overlay: whether containers have layers; else each layer has all files.
        program: the path of a program of FUSE that mounts layers; "" means that the kernel does.
        store: takes the image.
        base: returns an image, which may be pulled.
    """

    engine: str
    start: Callable[..., AbstractContextManager[StepContainer]]
    users: bool
    overlay: bool
    program: str = ""
    store: Store
    base: Callable[[str], Base]


@attrs.frozen(kw_only=True)
class Files:
    """The files of a stage.

    Attributes:
        key: a digest of all that they depend on.
        tree: the lowest directory.
        layers: what lies over it, the highest first.
        config: the configuration, where the stage has ended.
    """

    key: str
    tree: str
    layers: tuple[str, ...] = ()
    config: ImageConfig = attrs.field(factory=ImageConfig)


class ImageBuild:
    """One build."""

    def __init__(
        self,
        means: Means,
        context: Context,
        file: Containerfile,
        *,
        force: bool,
        on_output: Callable[[str], None],
    ) -> None:
        """Prepare a build.

        Args:
            means: what it uses of the engine.
            context: the files that it may read.
            file: the Containerfile.
            force: whether to run the steps of earlier builds again.
            on_output: called with each line of output.
        """
        self._means = means
        self._context = context
        self._file = file
        self._force = force
        self._on_output = on_output
        self._ids = ALL_IDS if means.users else ONE_ID
        self._cache = BuildCache(means.store.builds(), self._ids, by_fuse=bool(means.program))
        self._stages: dict[int, Files] = {}
        self._bases: dict[str, Base] = {}
        self._count = 0

    def run(self, reference: str) -> str:
        """Build the image and return its identifier.

        Raises:
            ImageBuildError: a step failed.
            SpecError: an instruction is invalid, or not supported.
        """
        with owned_directory(root=Path(scratch_directory())) as place:
            empty = f"{place}/empty"
            os.mkdir(empty)
            os.chmod(empty, 0o755)
            for number, part in self._file.parts.items():
                self._say(f"{part.start.name} {part.start.rest}")
                self._stages[number] = self._stage(number, part.base, empty)
            made = self._stages[max(self._file.parts)]
            facts = json.dumps([made.key, made.config.to_oci()])
            known = os.urandom(32).hex() if self._force else _digest(facts)
            fill = lambda directory: self._publish(made, directory)  # noqa: E731 - a closure
            identifier = self._means.store.make(known, reference, fill, made.config)
        self._cache.remove_old()
        return identifier

    def _stage(self, number: int, base: int | str, empty: str) -> Files:
        if isinstance(base, int):
            files = self._stages[base]
        elif base:
            image = self._base(base)
            files = Files(key=image.id, tree=image.tree, config=image.config)
        else:
            files = Files(key="scratch", tree=empty)
        config = files.config.to_oci()
        triggers = () if isinstance(base, int) else config.get("OnBuild", ())
        stage = self._file.stage(number, config, "\n".join(triggers))
        for step in stage.steps:
            self._say(step.text)
            files = self._after(files, step)
        return attrs.evolve(files, config=ImageConfig.from_oci(stage.config))

    def _say(self, text: str) -> None:
        self._count += 1
        self._on_output(f"STEP {self._count}: {' '.join(text.split())}")

    def _after(self, files: Files, step: Step) -> Files:
        """Return the files after a step, from the cache or by running it."""
        means = f"{self._means.overlay} {self._means.users} {self._means.program}"
        key = _digest(_FORMAT, files.key, means, self._facts(step))
        layer = None if self._force else self._cache.find(key)
        if layer is None:
            try:
                layer = self._make(files, step, key)
            except (SpecError, ImageBuildError):
                raise
            except (HyperRuntimeError, OSError) as error:
                why = str(error)
                if not isinstance(error, HyperRuntimeError):
                    why = f"a file of the step cannot be written: {why}; free space, or {STEP}"
                self._on_output(why)
                raise ImageBuildError(f"line {step.line}: {step.text}: {why}") from error
        else:
            self._on_output("--> from the cache")
        if not self._means.overlay:
            return Files(key=key, tree=layer)
        after = Files(key=key, tree=files.tree, layers=(layer, *files.layers))
        return after if sum(map(len, after.layers)) < _MOST_PATHS else self._flat(after)

    def _make(self, files: Files, step: Step, key: str) -> str:
        """Run a step; return the layer with its changes."""
        if isinstance(step, Run):
            return self._run(files, step, key)
        return self._change(files, step, key)

    def _flat(self, files: Files) -> Files:
        """Return the same files in one tree."""
        key = _digest("flat", files.key)
        tree = self._cache.find(key)
        if tree is None:
            with self._means.store.scratch() as place:
                self._merge(files, f"{place}/tree")
                tree = self._cache.add(key, f"{place}/tree")
        return Files(key=files.key, tree=tree)

    def _facts(self, step: Step) -> str:
        """Return what a step depends on besides the files before it."""
        facts = attrs.asdict(step, filter=lambda one, _: one.name not in ("line", "text"))
        if isinstance(step, Run):
            facts["hidden"] = sorted(step.hidden)
            facts["env"] = {k: v for k, v in step.env.items() if k not in step.hidden}
            binds = [one.source for one in step.mounts if one.kind == "bind"]
            facts["digest"] = self._context.digest(binds)
        elif isinstance(step, Copy) and step.origin is None:
            facts["digest"] = self._context.digest(step.sources)
        elif isinstance(step, Copy):
            facts["digest"] = self._origin(step.origin or 0).key
        return json.dumps([type(step).__name__, facts], sort_keys=True)

    def _origin(self, origin: int | str) -> Files:
        if isinstance(origin, int):
            return self._stages[origin]
        image = self._base(origin)
        return Files(key=image.id, tree=image.tree)

    def _base(self, name: str) -> Base:
        """Return an image, which stays the same one during the build."""
        if name not in self._bases:
            self._bases[name] = self._means.base(name)
        return self._bases[name]

    def _run(self, files: Files, step: Run, key: str) -> str:
        """Run a command in a container; return the layer with its changes."""
        with ExitStack() as stack:
            # each once, and in one order: steps that share caches must not wait for each other
            for name in sorted({_cache_name(one) for one in step.mounts if one.kind == "cache"}):
                stack.enter_context(self._means.store.lock(name))
            mounts = [stack.enter_context(self._mount(each, step)) for each in step.mounts]
            args = list(step.args)
            if step.script:
                mounts.append(stack.enter_context(self._script(step.script)))
                args = [f"{_SCRIPT}/run"]
            spec = ContainerSpec(
                image=files.tree,
                user=None if step.user in ("", "root", "0", "0:0", "root:root") else step.user,
                mounts=tuple(mounts),
                network="host" if step.network else "none",
                limits=Limits(pids=None),
            )
            layers = (*files.layers, files.tree)
            base = new_snapshot(self._means.engine, files.tree, layers) if files.layers else None
            container = stack.enter_context(self._means.start(spec, base=base))
            lines = _Lines(self._on_output)
            result = container.exec(
                ["/bin/sh", "-c", _ENTER, step.workdir, *args],
                env=dict(step.env),
                merge_output=True,
                on_output=lines,
            )
            lines.end()
            if result.exit_code != 0:
                why = f"line {step.line}: {step.text}: it ended with exit code {result.exit_code}"
                raise ImageBuildError(why)
            layer = container.end_as_layers()[0]
            _remove_mount_points(layer, files, (*_MOUNTED, *(one.target for one in mounts)))
            cached = self._cache.add(key, layer)
            forget(layer, self._means.engine)
            return cached

    @contextmanager
    def _script(self, text: str) -> Iterator[Mount]:
        with owned_directory() as directory:
            folder = Path(directory, "step")
            folder.mkdir()
            folder.chmod(0o755)
            program = folder / "run"
            program.write_text(text, errors="surrogateescape")
            program.chmod(0o755)
            yield Mount(source=str(folder), target=_SCRIPT)

    @contextmanager
    def _mount(self, mount: BuildMount, step: Run) -> Iterator[Mount]:
        """Yield a mount of a step, with what lies behind it."""
        with ExitStack() as stack:
            if mount.kind == "cache":
                source = self._cache_mount(mount)
            elif mount.kind == "bind" and self._context.is_whole:
                root = str(self._context.path)
                source = f"{root}/{resolve(root, mount.source)}"
            else:
                place = stack.enter_context(self._place())
                source = f"{place}/mount"
                os.mkdir(source)
                if mount.kind == "tmpfs":
                    os.chmod(source, 0o1777)
                elif mount.kind == "bind":
                    copy = Copy(line=step.line, text=step.text, target="/", sources=(mount.source,))
                    self._program(step, {**self._copy_job(copy), "root": source, "scratch": place})
            yield Mount(source=source, target=mount.target, read_only=mount.read_only)

    def _cache_mount(self, mount: BuildMount) -> str:
        """Return the directory of a cache mount, which is made if it is missing."""
        self._cache.prepare()
        kept = self._cache.directory / _cache_name(mount)
        source = str(kept / mount.owner.replace(":", "-"))
        if not os.path.isdir(source):
            new = f"{kept}/.new-{secrets.token_hex(4)}"  # a kill leaves none with a wrong owner
            os.makedirs(new)
            os.chmod(new, mount.mode)
            if mount.owner != "0:0" and self._means.users:
                given = run_process(["unshare", *self._ids, "chown", mount.owner, new], cwd="/")
                if given.exit_code != 0:
                    os.rmdir(new)
                    raise ImageBuildError(given.error_text)
            try:
                os.rename(new, source)
            except OSError:  # another build was faster, and has written there
                os.rmdir(new)
        os.utime(kept)
        return source

    def _change(self, files: Files, step: Step, key: str) -> str:
        """Change files without a container; return the layer with the changes."""
        with self._place() as place:
            job: dict[str, Any]
            if isinstance(step, Workdir):
                job = {"do": "directory", "path": step.path, "owner": step.user}
            else:
                assert isinstance(step, Copy)
                job = self._copy_job(step)
                if step.texts:
                    texts = f"{place}/texts"
                    os.mkdir(texts)
                    for name, text in step.texts:
                        Path(texts, name).write_text(text, errors="surrogateescape")
                    job["texts"] = texts
            return self._cache.add(key, self._change_files(files, place, job, step))

    def _copy_job(self, step: Copy) -> dict[str, Any]:
        job = attrs.asdict(step, filter=lambda one, _: one.name not in ("line", "text", "texts"))
        job |= {"do": "copy", "from": str(self._context.path), "kept": None}
        if step.origin is None and not self._context.is_whole:
            job["kept"] = list(self._context.kept)
        return job

    def _change_files(
        self, files: Files, place: str, job: dict[str, Any], step: Step | None = None
    ) -> str:
        """Let a program change files; return the directory with the changes."""
        mounts: list[dict[str, Any]] = []
        root = self._mounted(files, f"{place}/root", mounts)
        origin = job.pop("origin", None)
        if origin is not None:
            job["from"] = self._mounted(self._origin(origin), f"{place}/from", mounts)
        facts = {
            "root": root,
            "mounts": mounts,
            "scratch": place,
            "keeps_owners": origin is not None,
        }
        self._program(step, {**facts, **job})
        return f"{place}/root/upper" if self._means.overlay else root

    def _mounted(self, files: Files, place: str, mounts: list[dict[str, Any]]) -> str:
        """Add the mount of files that may be changed; return where they are then."""
        names = [f"{place}/{name}" for name in ("upper", "work", "at")]
        for one in (place, *names):
            os.mkdir(one)
        if not self._means.overlay:
            copied = run_process(
                ["cp", "-a", "--reflink=auto", f"{files.tree}/.", names[2]], cwd="/"
            )
            if copied.exit_code != 0:
                raise ImageBuildError(copied.error_text)
            return names[2]
        highest = (files.layers or (files.tree,))[0]
        os.chmod(names[0], stat.S_IMODE(os.stat(highest).st_mode) | stat.S_IRWXU)
        directory = str(self._cache.directory)
        lower = [one.removeprefix(f"{directory}/") for one in (*files.layers, files.tree)]
        self._cache.prepare()
        layers = Layers(
            directory=directory,
            layers=tuple(lower),
            upperdir=names[0],
            workdir=names[1],
            at=names[2],
            program=self._means.program,
        )
        mounts.append(attrs.asdict(layers))
        return names[2]

    def _program(self, step: Step | None, job: dict[str, Any]) -> None:
        whole = {"mounts": [], "users": self._means.users, "keeps_owners": False, **job}
        program = python_args("-m", "hyperruntime.layers.stepwise.file_program")
        args = ["unshare", *self._ids, "--mount", *program]
        message = json.dumps(whole).encode()
        result = run_process(args, input=message, cwd="/", env=english_environment())
        if result.exit_code != 0:
            if any(os.strerror(number) in result.error_text for number in FULL):
                raise StorageFullError(f"{result.error_text}; free space there")
            if step is not None:
                refuse(step.line, step.text, result.error_text)
            raise ImageBuildError(result.error_text)

    def _merge(self, files: Files, target: str) -> None:
        """Make one tree of the files of a stage."""
        trees = [*files.layers, files.tree]
        self._program(None, {"do": "tree", "trees": trees, "target": target})

    @contextmanager
    def _place(self) -> Iterator[str]:
        """Yield a directory on the disk of containers' files."""
        with owned_directory(root=Path(scratch_directory())) as directory:
            try:
                yield directory
            finally:  # files of other users, and a directory of the kernel that nobody can enter
                remove_tree(*(str(one) for one in Path(directory).iterdir()))

    def _publish(self, files: Files, directory: Path) -> None:
        """Make the tree of the image."""
        rootfs = directory / ROOTFS
        self._merge(files, str(rootfs))
        with LayerTree(rootfs) as tree:
            if files.config.env:
                tree.write(ENV_FILE, files.config.to_script().encode())
            tree.make_mount_points()
            tree.stamp()


def platform_arguments() -> dict[str, str]:
    """Return the values of the automatic ``ARG`` of this machine."""
    variant = {"arm64": "v8", "arm": "v7"}.get(architecture(), "")
    parts = {"OS": "linux", "ARCH": architecture(), "VARIANT": variant}
    parts["PLATFORM"] = "/".join(part for part in parts.values() if part)
    return {f"{of}{name}": value for of in ("TARGET", "BUILD") for name, value in parts.items()}


def _remove_mount_points(layer: str, files: Files, paths: tuple[str, ...]) -> None:
    """Remove empty files and directories that a step's mounts made in its layer."""
    below = (*files.layers, files.tree)
    names = ("dev", "proc", "sys")
    own = [f"/{name}" for name in names if _is_own_directory(f"{layer}/{name}")]
    inner = [f"{path}/{name}" for path in own for name in os.listdir(layer + path)]
    steps = {one for path in (*paths, *inner) for one in (path, *_above(path))}
    for path in sorted(steps, key=len, reverse=True):
        made = f"{layer}{path}"
        if any(os.path.islink(f"{layer}{one}") for one in _above(path)):
            continue  # the step made the link, which leads out of the layer
        if any(os.path.lexists(f"{one}{path}") for one in below) or not os.path.lexists(made):
            continue
        with suppress(OSError):  # it is not empty: the step wrote there
            if _is_own_directory(made):
                if set(os.listdir(made)) <= OPAQUE:
                    for name in os.listdir(made):
                        os.unlink(f"{made}/{name}")
                os.rmdir(made)
            elif stat.S_ISREG(os.lstat(made).st_mode) and not os.path.getsize(made):
                os.unlink(made)


def _is_own_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _above(path: str) -> Iterator[str]:
    while (path := posixpath.dirname(path)) != "/":
        yield path


def _cache_name(mount: BuildMount) -> str:
    return f"cache-{_digest(mount.source or mount.target)[:16]}"


class _Lines:
    """Passes output on in lines."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def __call__(self, stream: str, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + self._decoder.decode(chunk)).split("\n")
        for line in lines:
            self._on_line(line)
        if len(self._rest) > _MOST_LINE:
            self.end()

    def end(self) -> None:
        """Pass on what is left."""
        if self._rest:
            self._on_line(self._rest)
        self._rest = ""


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode(errors="surrogateescape")).hexdigest()
