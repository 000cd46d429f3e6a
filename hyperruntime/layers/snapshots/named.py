"""Named snapshots of engines whose containers are overlays that we mount: a directory for each."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import attrs
from platformdirs import user_data_path

from hyperruntime.errors import (
    EngineError,
    ImageError,
    StorageError,
    UnsupportedOptionError,
    write_error,
)
from hyperruntime.host.inherited import english_environment
from hyperruntime.host.owner import OwnerIdentity, owned_directory
from hyperruntime.host.process import run_process
from hyperruntime.host.temporary import NETWORK_FILE_SYSTEMS, file_system, scratch_directory
from hyperruntime.layers.archive import check_packed, write_archive
from hyperruntime.layers.config import ImageConfig
from hyperruntime.layers.holder import lowest
from hyperruntime.layers.records import KEPT, Record, Records, discard, user_of, users_of
from hyperruntime.layers.scratch import own_scratch
from hyperruntime.layers.snapshots.freezing import (
    Users,
    inside,
    merge_layers,
    new_directory,
    program,
    sync_files,
)
from hyperruntime.layers.snapshots.merging import is_of_fuse
from hyperruntime.layers.snapshots.snapshot import FileChange, Snapshot, Snapshots
from hyperruntime.storage.atomic import sync_directory

_FACTS = "snapshot.json"
# Mounts layers over each other, and writes their files to a tar.
_PACK = (
    'if [ "$1" ]; then cd "$1" && mount -t overlay overlay -o "lowerdir=$2,userxattr" "$3" || exit; fi; '
    'exec tar --create --file "$4" --numeric-owner --format=pax --xattrs --xattrs-include="user.*" '
    '--pax-option=delete=atime,delete=ctime --directory "$3" .'
)


class LayeredSnapshots(Snapshots):
    """The named snapshots of an engine."""

    def __init__(
        self,
        records: Records,
        config: Callable[[str, str], ImageConfig],
        users: Callable[[], Users],
    ) -> None:
        """Read nothing.

        Args:
            records: those of the engine.
            config: returns the configuration of an image from its reference and its tree.
            users: returns the ids of files.
        """
        self._records = records
        self._engine = records.engine
        self._config = config
        self._users = users

    def list(self, name: str | None = None) -> tuple[Snapshot, ...]:
        """Return those with a name, in the order of their names."""
        found = _read_all(_root() / self._engine)
        return tuple(one for one in found if name in (None, one.name))

    def keep(self, snapshot: Snapshot, name: str) -> Snapshot:
        """Give a name to the files of a snapshot."""
        self.check_new(name)
        snapshot.check_fits(self._engine, snapshot.image)
        self._clear()
        root = _root() / self._engine
        own = secrets.token_hex(6)
        # where files are copies, the only layer has all files
        stack = snapshot.layers[:-1] or snapshot.layers
        lower = snapshot.layers[1:][-1:]
        facts = attrs.evolve(snapshot, id=own, name=name, layers=lower)
        work = self._directory(root, snapshot.image, ":".join(snapshot.layers))
        try:
            os.mkdir(work.files, 0o700)
            merge_layers(stack, lower, f"{work.files}/{own}", users=self._users())
            Path(work.files, _FACTS).write_text(json.dumps(attrs.asdict(facts)))
            sync_files(work.files)
            os.rename(work.files, root / name)  # fails if the name exists
            sync_directory(root)
        except OSError as error:
            discard(work.files, self._records.path_of(work.name))
            self.check_new(name)  # another process was faster
            why = f"{work.files} cannot be written: {error}; free space"
            raise write_error(why, error) from error
        discard(work.files, self._records.path_of(work.name))
        return self.find(name)

    def remove(self, name: str) -> None:
        """Remove the one with a name."""
        own = self.find(name).id
        root = _root() / self._engine
        user = user_of(own)
        if not user:
            work = self._directory(root, "", "")
            with suppress(FileNotFoundError):  # another process was faster
                os.rename(root / name, work.files)
                if user := next(users_of(own), ""):  # it has just started
                    os.rename(work.files, root / name)
                sync_directory(root)  # after a power loss it has all files, or no name
            discard(work.files, self._records.path_of(work.name))
        if user:
            raise EngineError(f"snapshot {name!r} is used by {user}")

    def diff(self, old: Snapshot | None, new: Snapshot) -> tuple[FileChange, ...]:
        """Return what changed from an older snapshot, or from the image."""
        if old is None and len(new.layers) == 1:
            why = "snapshots are copies on this machine, which do not know their image; name one"
            raise UnsupportedOptionError(self._engine, "snapshot.diff", why)
        before = new.layers[-1:] if old is None else old.layers
        words = program("compare", *before, "--", *new.layers)
        result = run_process(
            inside(self._users(), *words, trees={before[-1], new.layers[-1]}), cwd="/"
        )
        if result.exit_code != 0:
            raise StorageError(f"the snapshots cannot be read: {result.error_text}")
        found = map(json.loads, result.stdout.splitlines())
        return tuple(FileChange(kind=kind, path=path) for kind, path in found)

    def save(self, snapshot: Snapshot, reference: str, archive: Path) -> None:
        """Write an image with the files of a snapshot."""
        config = self._config(snapshot.image, snapshot.layers[-1])
        with owned_directory(root=Path(scratch_directory())) as place:
            at = f"{place}/root"
            words = self._to_pack(snapshot.layers, at)
            tar = Path(place, "layer.tar")
            args = ["/bin/sh", "-c", _PACK, "pack", *words, str(tar)]
            args = inside(self._users(), *args, trees=snapshot.layers[-1:])
            check_packed(run_process(args, cwd="/", env=english_environment()), tar)
            write_archive(archive, reference, tar, config)

    def _to_pack(self, layers: tuple[str, ...], at: str) -> tuple[str, str, str]:
        """Return the first words of the script that packs layers; ``at`` is a new directory."""
        top = layers[0]
        if len(layers) == 1:
            return "", "", top
        if not is_of_fuse(top):
            os.mkdir(at)
            folder = os.path.dirname(os.path.dirname(top))  # the options of a mount have one page
            return folder, lowest([one.removeprefix(f"{folder}/") for one in layers]), at
        try:  # the kernel reads other marks
            merge_layers(layers, (), at, users=self._users())
        except OSError as error:
            raise ImageError(f"{at} cannot be written: {error}; free space there") from error
        return "", "", at

    def _directory(self, root: Path, image: str, source: str) -> Record:
        """Write the record of a new directory near those of the named snapshots."""
        place = root / ".new"
        try:
            os.makedirs(place, mode=0o700, exist_ok=True)
        except OSError as error:
            why = f"{root} cannot be written: {error}; set XDG_DATA_HOME to another directory"
            raise write_error(why, error) from error
        labels = OwnerIdentity.current().to_labels()
        return new_directory(self._records, str(place), image, source, labels)

    def _clear(self) -> None:
        """Remove what killed processes did not finish."""
        for one in self._records.read_all():
            if one.name.startswith(KEPT) and one.state() == "dead":
                self._records.end(one)


def named_users_of(identifier: str) -> Iterator[str]:
    """Yield the named snapshots of an image of the store, of any engine, as part of a sentence."""
    for folder in sorted(_root().glob("*/")):
        for one in _read_all(folder):
            if identifier in "/".join(one.layers).split("/"):
                step = f"`hyperrun --runtime {one.engine} snapshot remove {one.name}` removes it"
                yield f"the snapshot {one.name!r}; {step}"


def _root() -> Path:
    """Return the directory of this user's named snapshots, on a disk that can hold layers."""
    root = user_data_path("hyperruntime") / "snapshots"
    if file_system(str(root)) in NETWORK_FILE_SYSTEMS:
        return own_scratch("snapshots") or root
    return root


def _read_all(folder: Path) -> Iterator[Snapshot]:
    for path in sorted(folder.glob(f"*/{_FACTS}")):
        with suppress(OSError, ValueError, TypeError, KeyError):  # it is removed just now
            facts = json.loads(path.read_text())
            layers = (f"{path.parent}/{facts['id']}", *facts["layers"])
            repositories = tuple(facts["repositories"])
            yield Snapshot(**{**facts, "layers": layers, "repositories": repositories})
