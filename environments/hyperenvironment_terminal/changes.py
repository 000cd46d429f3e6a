"""Plan which changes of an agent are applied to a fresh container of the same image.

Paths that could influence the tests are protected: changes to them are not applied. Pure functions
over listings.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Iterable

import attrs

from hyperenvironment_terminal.listing import DIRECTORY, FILE, LINK, Listing
from hyperenvironment_terminal.task import LOGS, SOLUTION, TESTS, TOOLS

# Files of the kernel, of this run, or of the engine.
NOT_LISTED = ("/proc", "/sys", "/dev", "/run", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab",
              "/.dockerenv", "/.singularity.d", "/singularity", SOLUTION, TOOLS)  # fmt: skip
# Programs, libraries, and the databases of package managers.
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/boot", "/nix", "/snap",
           "/var/lib/dpkg", "/var/lib/apt", "/var/lib/rpm", "/var/lib/pacman", "/lib/apk", "/var/cache")  # fmt: skip
# Configuration that programs read at start-up.
_READ_FIRST = ("/etc/ld.so.preload", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.cache", "/etc/alternatives",
               "/etc/profile", "/etc/profile.d", "/etc/bash.bashrc", "/etc/bashrc", "/etc/environment", "/etc/zsh",
               "/etc/python3", "/etc/nsswitch.conf", "/etc/pam.d", "/etc/security", "/etc/gitconfig", "/etc/sudoers",
               "/etc/sudoers.d", "/etc/pip.conf", "/etc/npmrc")  # fmt: skip
_OF_PYTEST = ("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg",
              "setup.py", "pyproject.toml")  # fmt: skip
_BINS = (b"bin", b"sbin", b"condabin")
_MAX_LINKS = 40  # source: path_resolution(7)
_MODULES = frozenset(
    {*sys.stdlib_module_names, "pytest", "_pytest", "pluggy", "iniconfig", "packaging", "py", "exceptiongroup", "tomli",
     "pygments", "sitecustomize", "usercustomize"}
)  # fmt: skip


@attrs.frozen(kw_only=True)
class ChangePlan:
    """The steps that apply an agent's changes to a pristine container.

    Attributes:
        remove: paths that were removed or changed their kind; no path is below another one.
        directories: directories to create, or to give a new mode or owner; parents first.
        files: files to copy.
        links: links to create; they come last, so that nothing is written through a link.
        withheld: sorted paths; changes at and below them are not applied.
    """

    remove: tuple[bytes, ...] = ()
    directories: tuple[bytes, ...] = ()
    files: tuple[bytes, ...] = ()
    links: tuple[bytes, ...] = ()
    withheld: tuple[bytes, ...] = ()


def plan_changes(pristine: Listing, listing: Listing, protection: Protection) -> ChangePlan:
    """Return the plan for the changes between two listings.

    Args:
        pristine: listing of the pristine container.
        listing: listing of the agent's container; it is untrusted.
        protection: paths where changes are not applied.
    """
    real = {b"/"}  # paths that will be real directories, not links
    chosen: dict[bytes, list[bytes]] = {DIRECTORY: [], FILE: [], LINK: []}
    removed: set[bytes] = set()
    withheld: set[bytes] = set()

    for path in sorted(listing):
        entry = listing[path]
        before = pristine.get(path)
        below_real = posixpath.dirname(path) in real
        if before is not None and before.same(entry):
            becomes = entry.kind
        elif (
            below_real
            and entry.kind in chosen
            and not _is_protected(path, entry.kind, listing, protection)
        ):
            chosen[entry.kind].append(path)
            becomes = entry.kind
            if before is not None and before.kind != entry.kind:
                removed.add(path)
        else:
            withheld.add(path)
            becomes = b"" if before is None else before.kind
        if becomes == DIRECTORY and below_real:
            real.add(path)

    for path in sorted(pristine.keys() - listing.keys()):
        if posixpath.dirname(path) in removed:
            removed.add(path)
        elif protection.holds(path, listing) or protection.is_above(path):
            withheld.add(path)
        elif posixpath.dirname(path) in real:
            removed.add(path)

    return ChangePlan(
        remove=_topmost(removed),
        directories=tuple(chosen[DIRECTORY]),
        files=tuple(chosen[FILE]),
        links=tuple(chosen[LINK]),
        withheld=_topmost(withheld),
    )


def _is_protected(path: bytes, kind: bytes, listing: Listing, protection: Protection) -> bool:
    """Return whether a path, or a path below it that a new file or link would replace, is
    protected.
    """
    return protection.holds(path, listing) or (kind != DIRECTORY and protection.is_above(path))


def _topmost(paths: set[bytes]) -> tuple[bytes, ...]:
    """Return the sorted paths whose directory is not among them."""
    return tuple(path for path in sorted(paths) if posixpath.dirname(path) not in paths)


@attrs.frozen
class Protection:
    """The paths at which an agent's changes are not applied.

    Attributes:
        trees: protected files, and directories with everything below them.
        workdir: working directory of the tests.
        module_dir: directory in which the Python of a test script looks for modules first, or b"".
        pristine: listing of the image.
    """

    trees: frozenset[bytes]
    workdir: bytes
    module_dir: bytes
    pristine: Listing

    def holds(self, path: bytes, listing: Listing) -> bool:
        """Return whether a path of the agent's listing is protected."""
        parent, name = posixpath.split(path)
        if any(prefix in self.trees for prefix in _prefixes(path)):
            return True
        if parent == b"/" and name.decode(errors="replace") in _OF_PYTEST:
            return True
        return self._shadows(path, listing)

    def is_above(self, path: bytes) -> bool:
        """Return whether a protected path, or the working directory, is below a path."""
        start = path + b"/"
        return any(tree.startswith(start) for tree in self.trees) or self.workdir.startswith(start)

    def _shadows(self, path: bytes, listing: Listing) -> bool:
        """Return whether a new file would shadow a module of Python or pytest in a test script."""
        below = path.removeprefix(self.module_dir + b"/")
        if not self.module_dir or below == path or path in self.pristine:
            return False
        top, slash, _ = below.partition(b"/")
        if top.partition(b".")[0].decode(errors="replace") not in _MODULES:
            return False
        if not slash and path in listing and listing[path].kind != DIRECTORY:
            return top.endswith((b".py", b".pyc", b".so")) or listing[path].kind == LINK
        package = self.module_dir + b"/" + top
        inits = (package + b"/__init__" + suffix for suffix in (b".py", b".pyc", b".so"))
        return package not in self.pristine and any(init in listing for init in inits)


def make_protection(
    pristine: Listing, search_path: Iterable[str], workdir: str, *, scripted: bool = True
) -> Protection:
    """Return the protected paths of an image.

    Args:
        pristine: listing of the image.
        search_path: the directories of ``PATH``.
        workdir: working directory of the tests.
        scripted: whether the tests are a script, whose Python looks for modules in ``workdir``.
    """
    begin = posixpath.normpath(workdir)
    trees = {path.encode() for path in (*_SYSTEM, *_READ_FIRST, TESTS, LOGS, *NOT_LISTED)}
    trees |= {
        path for path in pristine if path.startswith(b"/etc/python3.") and path.count(b"/") == 2
    }
    for directory in search_path:
        if directory.startswith("/"):
            trees |= _of_search_path(
                posixpath.normpath(directory).encode(), pristine, begin.encode()
            )
    module_dir = begin.encode() if scripted and begin != "/" else b""
    return Protection(frozenset(trees), begin.encode(), module_dir, pristine)


def _of_search_path(directory: bytes, pristine: Listing, begin: bytes) -> set[bytes]:
    """Return the protected paths of a directory of commands: it, its real path, and the targets of
    its links.

    Paths inside or above the working directory are not protected, even if a command links to them.
    """
    real = _resolve(directory, pristine)
    found = {directory} | _prefix_of(real, pristine)
    for path in pristine:
        if pristine[path].kind == LINK and posixpath.dirname(path) in (directory, real):
            end = _resolve(path, pristine)
            folder = posixpath.dirname(end)
            found |= _prefix_of(folder, pristine) if posixpath.basename(folder) in _BINS else {end}
    return {path for path in found if not _is_within(path, begin) and not _is_within(begin, path)}


def _is_within(path: bytes, tree: bytes) -> bool:
    return (path + b"/").startswith(tree.rstrip(b"/") + b"/")


def _resolve(path: bytes, pristine: Listing) -> bytes:
    """Resolve the links of a path in an image; return the path itself after too many links (a
    loop).
    """
    done = b"/"
    todo = path.split(b"/")
    steps = 0
    while todo:
        name = todo.pop(0)
        if name == b"..":
            done = posixpath.dirname(done)
        elif name not in (b"", b"."):
            step = posixpath.join(done, name)
            entry = pristine.get(step)
            if entry is None or entry.kind != LINK:
                done = step
                continue
            steps += 1
            if steps > _MAX_LINKS:
                return path
            done = b"/" if entry.link.startswith(b"/") else done
            todo = entry.link.split(b"/") + todo
    return done


def _prefix_of(directory: bytes, pristine: Listing) -> set[bytes]:
    """Return a directory of commands, and the sibling library directories if it is a ``bin``
    directory.
    """
    parent, name = posixpath.split(directory)
    beside = (b"lib", b"lib64", b"libexec", b"pyvenv.cfg") if name in _BINS else ()
    others = (posixpath.join(parent, other) for other in beside)
    return {directory, *(other for other in others if other in pristine)}


def _prefixes(path: bytes) -> Iterable[bytes]:
    """Yield a path and every directory above it except the root."""
    while path not in (b"/", b""):
        yield path
        path = posixpath.dirname(path)
