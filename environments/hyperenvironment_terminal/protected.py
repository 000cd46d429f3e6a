"""What an agent may not bring into the container in which its work is judged: whatever judges it.

Pure: lists in, a verdict per path out.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Iterable

import attrs

from hyperenvironment_terminal.listing import DIRECTORY, LINK, Listing

TESTS, LOGS, SOLUTION, TOOLS = "/tests", "/logs", "/solution", "/.hyperruntime-judge"
# Nobody's files: of the kernel, of this run, or the engine's own.
NOT_LISTED = ("/proc", "/sys", "/dev", "/run", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab",
              "/.dockerenv", "/.singularity.d", "/singularity", SOLUTION, TOOLS)  # fmt: skip
# Programs and libraries, and what package managers know of them.
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/boot", "/nix", "/snap",
           "/var/lib/dpkg", "/var/lib/apt", "/var/lib/rpm", "/var/lib/pacman", "/lib/apk", "/var/cache")  # fmt: skip
# What is read by programs before they do what they are asked.
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


@attrs.frozen
class Protection:
    """Which paths an agent's changes are not taken over at.

    Attributes:
        trees: directories, and files, with all below them.
        workdir: where the tests begin.
        module_dir: where a test script's Python looks for modules first, or b"" where it does not look there.
        pristine: the image's own files.
    """

    trees: frozenset[bytes]
    workdir: bytes
    module_dir: bytes
    pristine: Listing

    def holds(self, path: bytes, listing: Listing) -> bool:
        """Tell whether a path of an agent's list is protected."""
        parent, name = posixpath.split(path)
        if any(prefix in self.trees for prefix in _prefixes(path)):
            return True
        if parent == b"/" and name.decode(errors="replace") in _OF_PYTEST:
            return True
        return self._shadows(path, listing)

    def is_above(self, path: bytes) -> bool:
        """Tell whether something below a path is protected."""
        start = path + b"/"
        return any(tree.startswith(start) for tree in self.trees) or self.workdir.startswith(start)

    def _shadows(self, path: bytes, listing: Listing) -> bool:
        """Tell whether a new file would be taken for a module of Python's or of pytest's by a test script."""
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
    """Return what is protected in an image.

    Args:
        pristine: the image's files.
        search_path: directories in which its commands are looked for.
        workdir: where the tests begin.
        scripted: whether the tests are a script, whose Python looks for modules in ``workdir``.
    """
    begin = posixpath.normpath(workdir)
    trees = {path.encode() for path in (*_SYSTEM, *_READ_FIRST, TESTS, LOGS, *NOT_LISTED)}
    trees |= {path for path in pristine if path.startswith(b"/etc/python3.") and path.count(b"/") == 2}
    for directory in search_path:
        if directory.startswith("/"):
            trees |= _of_search_path(posixpath.normpath(directory).encode(), pristine, begin.encode())
    module_dir = begin.encode() if scripted and begin != "/" else b""
    return Protection(frozenset(trees), begin.encode(), module_dir, pristine)


def _of_search_path(directory: bytes, pristine: Listing, begin: bytes) -> set[bytes]:
    """Return what is protected for a directory of commands: it, by every name, and where links in it lead.

    What lies where the work is done stays the agent's to change, though a command leads there.
    """
    real = _resolve(directory, pristine)
    found = {directory} | _prefix_of(real, pristine)
    for path in pristine:
        if pristine[path].kind == LINK and posixpath.dirname(path) in (directory, real):
            end = _resolve(path, pristine)
            found |= (
                {end}
                if posixpath.basename(posixpath.dirname(end)) not in _BINS
                else _prefix_of(posixpath.dirname(end), pristine)
            )
    return {path for path in found if not _is_within(path, begin) and not _is_within(begin, path)}


def _is_within(path: bytes, tree: bytes) -> bool:
    return (path + b"/").startswith(tree.rstrip(b"/") + b"/")


def _resolve(path: bytes, pristine: Listing) -> bytes:
    """Return where a path leads through an image's links; where it leads round, what it is."""
    done, todo, steps = b"/", path.split(b"/"), 0
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
    """Return a directory of commands, and the libraries beside it where it is some installation's ``bin``."""
    parent, name = posixpath.split(directory)
    beside = (b"lib", b"lib64", b"libexec", b"pyvenv.cfg") if name in _BINS else ()
    return {
        directory,
        *(posixpath.join(parent, other) for other in beside if posixpath.join(parent, other) in pristine),
    }


def _prefixes(path: bytes) -> Iterable[bytes]:
    """Yield a path and every directory above it but the root."""
    while path not in (b"/", b""):
        yield path
        path = posixpath.dirname(path)
