"""The changes of an agent's container that are copied to the judge's container; protected paths
never change.
"""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperenvironment_terminal.changes import ChangePlan, make_protection, plan_changes
from hyperenvironment_terminal.listing import DIRECTORY, FILE, LINK, Entry, Listing, parse_listing
from hyperruntime.errors import TransferError

NAMES = (
    "a",
    "b",
    "bin",
    "usr",
    "etc",
    "app",
    "tests",
    "ld.so.preload",
    "json.py",
    "lib",
    "conftest.py",
)


def entry(kind: bytes, link: str = "", mtime: bytes = b"1") -> Entry:
    """Return an entry that belongs to root."""
    return Entry(kind, 0o755, 0, 0, 1, mtime, link.encode())


def listing(**paths: Entry) -> dict[bytes, Entry]:
    """Return a listing; two underscores in a name stand for a slash."""
    return {b"/" + name.replace("__", "/").encode(): value for name, value in paths.items()}


PRISTINE = listing(
    usr=entry(DIRECTORY), usr__bin=entry(DIRECTORY), usr__bin__a=entry(FILE), bin=entry(LINK, "usr/bin"),
    etc=entry(DIRECTORY), etc__a=entry(FILE), app=entry(DIRECTORY), app__a=entry(FILE), app__b=entry(LINK, "/usr"),
    a=entry(LINK, "etc"), b=entry(DIRECTORY), b__a=entry(DIRECTORY), b__a__b=entry(FILE),
)  # fmt: skip
PROTECTION = make_protection(PRISTINE, ["/usr/bin", "/bin", "/app"], "/app")


def steps(plan: ChangePlan, said: Listing) -> list[tuple[bytes, bytes]]:
    """Return ``(path, kind)`` of each step in order; the kind of a removal is ``-``."""
    removed = [(path, b"-") for path in plan.remove]
    made = [
        (path, said[path].kind)
        for paths in (plan.directories, plan.files, plan.links)
        for path in paths
    ]
    return removed + made


def below(path: bytes, kinds: dict[bytes, bytes]) -> set[bytes]:
    """Return this path and the paths below it."""
    return {other for other in kinds if f"{other.decode()}/".startswith(f"{path.decode()}/")}


_PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map(
    lambda names: b"/" + "/".join(names).encode()
)
_ENTRIES = st.builds(
    entry, st.sampled_from([FILE, DIRECTORY, LINK, b"p"]), st.sampled_from(["", "/usr", "..", "/etc", "a"]),
    st.sampled_from([b"1", b"2"]),
)  # fmt: skip


@given(
    st.dictionaries(_PATHS, _ENTRIES, max_size=12),
    st.sets(st.sampled_from(sorted(PRISTINE)), max_size=6),
)
def test_a_false_listing_cannot_change_protected_paths(
    lies: dict[bytes, Entry], missing: set[bytes]
) -> None:
    """W22: no step changes a protected path, goes through a link, or removes a parent of a
    protected path.
    """
    said = {**{path: found for path, found in PRISTINE.items() if path not in missing}, **lies}
    kinds = {path: found.kind for path, found in PRISTINE.items()}
    for path, kind in steps(plan_changes(PRISTINE, said, PROTECTION), said):
        above = posixpath.dirname(path)
        while above != b"/":
            assert kinds.get(above) == DIRECTORY, (path, above)
            above = posixpath.dirname(above)
        touched = below(path, kinds) if kind == b"-" else {path}
        assert not [hit for hit in touched if PROTECTION.holds(hit, said)], (path, kind)
        if kind != DIRECTORY:
            assert not PROTECTION.is_above(path), (path, kind)
        for gone in below(path, kinds) if kind == b"-" else ():
            del kinds[gone]
        if kind != b"-":
            assert kinds.get(path, kind) == kind, "an entry of another kind must be removed first"
            kinds[path] = kind


@given(
    st.dictionaries(_PATHS, _ENTRIES, max_size=12),
    st.sets(st.sampled_from(sorted(PRISTINE)), max_size=6),
)
def test_every_difference_is_applied_or_reported(
    lies: dict[bytes, Entry], missing: set[bytes]
) -> None:
    """A difference below a reported path is not reported again."""
    said = {**{path: found for path, found in PRISTINE.items() if path not in missing}, **lies}
    plan = plan_changes(PRISTINE, said, PROTECTION)
    known = {path for path, _ in steps(plan, said)} | set(plan.withheld)
    for path in {*PRISTINE, *said}:
        before, after = PRISTINE.get(path), said.get(path)
        if before is not None and after is not None and before.same(after):
            continue
        parents = [path]
        while parents[-1] != b"/":
            parents.append(posixpath.dirname(parents[-1]))
        absent = any(p not in said and p != b"/" for p in parents[1:])
        assert absent or known & set(parents), path


@pytest.mark.parametrize(
    ("path", "kind", "withheld"),
    [
        ("app/json.py", FILE, True),
        ("app/answer.py", FILE, False),
        ("app/notes/json.py", FILE, False),
        ("root/.bashrc", FILE, False),
        ("etc/hosts.allow", FILE, False),
        ("etc/python3.11/sitecustomize.py", FILE, True),
        ("opt/conda/lib/python3.12/site-packages/x.pth", FILE, True),
        ("opt/conda/envs/x", FILE, False),
        ("usr/local/bin/python3", FILE, True),
        ("conftest.py", FILE, True),
        ("result.txt", FILE, False),
        ("var/lib/dpkg/status", FILE, True),
        ("var/lib/mysql/db", FILE, False),
    ],
)
def test_files_that_influence_the_judge_are_withheld_and_other_files_are_not(
    path: str, kind: bytes, withheld: bool
) -> None:
    """Programs, libraries, modules that shadow those of a test, and startup files."""
    pristine = {
        b"/etc/python3.11": entry(DIRECTORY), b"/opt/conda/bin": entry(DIRECTORY), b"/opt/conda/lib": entry(DIRECTORY),
    }  # fmt: skip
    protection = make_protection(pristine, ["/usr/local/bin", "/usr/bin", "/opt/conda/bin"], "/app")
    name = b"/" + path.encode()
    assert protection.holds(name, {name: entry(kind)}) is withheld


def test_commands_are_protected_by_all_their_names_and_at_their_targets() -> None:
    """Targets in the work directory are not protected."""
    pristine = {
        b"/opt/node": entry(LINK, "node-20"), b"/opt/node-20/bin": entry(DIRECTORY),
        b"/opt/node-20/lib": entry(DIRECTORY), b"/opt/node-20/bin/npm": entry(LINK, "../../npm/cli"),
        b"/opt/node-20/bin/tool": entry(LINK, "/app/tool"), b"/opt/node-20/bin/loop": entry(LINK, "loop"),
    }  # fmt: skip
    protection = make_protection(pristine, ["/opt/node/bin", "relative", ""], "/app")
    for path in (b"/opt/node/bin", b"/opt/node-20/bin/x", b"/opt/node-20/lib/x", b"/opt/npm/cli"):
        assert protection.holds(path, {}), path
    for path in (b"/app/tool", b"/opt/npm/other", b"/opt/node-20/share"):
        assert not protection.holds(path, {}), path


def test_a_package_that_shadows_a_module_of_the_judge_is_withheld() -> None:
    """A directory without ``__init__.py`` never shadows a module."""
    plain = {b"/app/email": entry(DIRECTORY), b"/app/email/a.txt": entry(FILE)}
    package = {**plain, b"/app/email/__init__.py": entry(FILE)}
    protection = make_protection({b"/app": entry(DIRECTORY)}, [], "/app")
    assert not any(protection.holds(path, plain) for path in plain)
    assert all(protection.holds(path, package) for path in package)
    for_pytest = make_protection({b"/app": entry(DIRECTORY)}, [], "/app", scripted=False)
    assert not any(for_pytest.holds(path, package) for path in package)


@given(st.binary())
def test_any_listing_is_parsed_or_rejected(data: bytes) -> None:
    """The container can answer anything; parsed paths are always absolute."""
    try:
        found = parse_listing(data)
    except TransferError:
        return
    assert all(path.startswith(b"/") for path in found)


@pytest.mark.parametrize("path", [b"/a/../etc", b"/a//b", b"a", b"/a/.", b"/"])
def test_paths_of_a_listing_must_be_normalised(path: bytes) -> None:
    with pytest.raises(TransferError):
        parse_listing(b"f 644 0 0 1 1.0 " + path + b"\0\0")
    assert parse_listing(b"l 777 0 0 1 -1.5 /a b\nc\0../x\0") == {
        b"/a b\nc": Entry(b"l", 0o777, 0, 0, 1, b"-1.5", b"../x")
    }
