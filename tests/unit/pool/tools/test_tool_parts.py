"""Parts of the tools without containers: patterns, diffs, windows of files, searches and
archives.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import re
import tarfile
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperruntime.errors import TransferError
from hyperruntime.exec.streams import OutputBuffer, split_kept
from hyperruntime.host.process import run_process
from hyperruntime.pool.tools.archiving import pack
from hyperruntime.pool.tools.command import kept_bytes, show_output
from hyperruntime.pool.tools.dispatch import ALIASES, TOOLS
from hyperruntime.pool.tools.files import Window, decode, encode
from hyperruntime.pool.tools.listing import Entries
from hyperruntime.pool.tools.pattern import to_posix
from hyperruntime.pool.tools.search import EnoughError, SearchLines
from hyperruntime.pool.tools.tool import ToolProblemError
from hyperruntime.pool.tools.unified import apply_hunks, parse_diff
from hyperruntime.pool_values.config import TOOL_NAMES

_CHARS = "ab1_ .-]^\tx,[:=AZ"
_BRACKET = st.builds(
    lambda negated, items: f"[{'^' * negated}{''.join(items)}]",
    st.booleans(),
    st.lists(
        st.sampled_from(
            [
                "a",
                "1",
                r"\d",
                r"\w",
                r"\s",
                r"\]",
                r"\-",
                r"\^",
                r"\.",
                "a-b",
                r"\^-b",
                r"\--2",
                r"Z-\]",
                r"\]-a",
                "_",
                r"\[",
                "[",
                ":",
                "=",
                ".",
                r"\x41",
                r"\[-a",
            ]
        ),
        min_size=1,
        max_size=3,
    ),
)
_ATOM = (
    st.sampled_from([*r"\d \D \w \s \t \. \x2e \u0061 . a b 1 _ x , \- \] \[".split(" ")])
    | _BRACKET
)
_REGEX = st.recursive(
    _ATOM,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        inner.map(lambda p: f"({p})"),
        st.tuples(inner, inner).map(lambda p: f"(?:{p[0]}|{p[1]})"),
        st.tuples(
            inner, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "*?", "+?", "??", "{2}?"])
        ).map(lambda p: f"(?:{p[0]}){p[1]}"),
    ),
    max_leaves=6,
)


@given(pattern=_REGEX, lines=st.lists(st.text(_CHARS, max_size=6), min_size=1, max_size=8))
@settings(max_examples=80, deadline=None)
def test_a_pattern_has_the_same_matches_in_grep_and_in_python(
    pattern: str, lines: list[str]
) -> None:
    text = "".join(f"{line}\n" for line in lines)

    result = run_process(
        ["env", "LC_ALL=C", "grep", "-nE", "-e", to_posix(pattern)], input=text.encode()
    )

    with warnings.catch_warnings(
        action="ignore", category=FutureWarning
    ):  # Python warns that a later version may support nested sets
        meant = re.compile(pattern, re.ASCII)
    expected = [f"{n}:{line}\n" for n, line in enumerate(lines, 1) if meant.search(line)]
    assert result.stdout.decode() == "".join(expected), to_posix(pattern)


@pytest.mark.parametrize(
    ("pattern", "line", "finds"),
    [
        ("foo.+?bar", "foobar", False),
        ("foo.+?bar", "foo-bar", True),
        (r"\Aab", "xab", False),
        (r"ab\Z", "ab", True),
        (r"x[\[.]", "x[", True),
        (r"[^\[=]", "[=", False),
        (r"[[:digit:][]", "[", True),
        (r"[\r]", "a\r", True),
        (r"\f", "f", False),
        (r"\x2e", "a", False),
        (r"a{2}?", "aa", True),
    ],
)
def test_special_patterns_keep_their_python_meaning_in_grep(
    pattern: str, line: str, finds: bool
) -> None:
    result = run_process(
        ["env", "LC_ALL=C", "grep", "-qE", "-e", to_posix(pattern)], input=line.encode() + b"\n"
    )
    assert (result.exit_code, result.stderr) == (0 if finds else 1, b"")


@pytest.mark.parametrize(
    "pattern",
    [
        r"\x0a",
        r"\0",
        r"\g",
        r"\N",
        r"\x4",
        "a++",
        "(?=a)",
        "(?P<n>a)",
        "[a",
        "[",
        "[^",
        "a\\",
        r"a\nb",
        r"[\W]",
        "[]",
    ],
)
def test_a_pattern_that_grep_cannot_express_is_rejected(pattern: str) -> None:
    with pytest.raises(ToolProblemError, match="invalid pattern"):
        to_posix(pattern)


_LINES = st.lists(
    st.sampled_from(["a\n", "b\n", "\n", " c\n", "--- d\n", "+e\r\n", "@@ f\n"]), max_size=12
)


@given(before=_LINES, after=_LINES, context=st.integers(0, 4), open_end=st.booleans())
@settings(deadline=None)
def test_applying_a_diff_of_difflib_gives_the_second_text(
    before: list[str], after: list[str], context: int, open_end: bool
) -> None:
    if open_end and before and after:
        before, after = [*before[:-1], "end"], [*after[:-1], "end too"]
    lines = [
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(before, after, "a/f", "b/f", n=context)
    ]
    if lines:
        (found,) = parse_diff("".join(lines).encode())
        assert found.path == b"f"
        assert apply_hunks("".join(before).encode(), found.hunks).decode() == "".join(after)


@given(
    st.binary(max_size=200)
    | st.lists(
        st.sampled_from([b"--- a\n", b"+++ b\n", b"@@ -1 +1 @@\n", b"-a\n", b"+b\n", b"\\\n"])
    ).map(b"".join)
)
def test_any_bytes_are_parsed_as_a_diff_or_rejected(data: bytes) -> None:
    try:
        files = parse_diff(data)
    except ToolProblemError as error:
        assert str(error)  # noqa: PT017 - both outcomes are correct
    else:
        assert files
        assert all(file.hunks for file in files)


def test_a_hunk_with_wrong_line_numbers_and_line_ends_is_applied() -> None:
    diff = b"--- a/f\n+++ b/f\n@@ -90,9 +90,9 @@\n one\n-two\n+2\n\n three"
    (found,) = parse_diff(diff)

    assert (
        apply_hunks(b"zero\r\none\r\ntwo\r\n\r\nthree", found.hunks)
        == b"zero\r\none\r\n2\r\n\r\nthree"
    )
    assert apply_hunks(b"", parse_diff(b"@@ -0,0 +1 @@\n+new\n", b"f")[0].hunks) == b"new\n"


@pytest.mark.parametrize(
    ("diff", "words"),
    [
        ("--- a/f\n+++ b/g\n@@ -1 +1 @@\n-a\n+b\n", "rename"),
        ("rename from a\nrename to b\n", "not supported: "),
        ("--- a/f\n+++ b/f\n", "no hunk"),
        ("@@ -1 +1 @@\n-a\n+b\n", "before the lines"),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n a\n", "changes nothing"),
        ("--- /dev/null\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n", "is a new file, but"),
        ('--- "a/f\\000"\n+++ "b/f\\000"\n@@ -1 +1 @@\n-a\n+b\n', "is invalid; give it"),
    ],
)
def test_an_unsupported_or_invalid_diff_is_rejected(diff: str, words: str) -> None:
    with pytest.raises(ToolProblemError, match=words):
        parse_diff(diff.encode())


@given(
    st.binary(max_size=60),
    st.integers(1, 5),
    st.none() | st.integers(1, 4),
    st.lists(st.integers(1, 9)),
)
def test_a_window_does_not_depend_on_how_the_file_is_split(
    data: bytes, first: int, count: int | None, cuts: list[int]
) -> None:
    window = Window(first, count, 20)
    at = 0
    for cut in [*cuts, len(data)]:
        window.write(data[at : at + cut])
        at += cut

    lines = data.split(b"\n")
    ended = [line + b"\n" for line in lines[:-1]] + [lines[-1]] * bool(lines[-1])
    assert (
        window.kept
        == b"".join(ended[first - 1 : None if count is None else first - 1 + count])[:20]
    )
    assert (window.lines, window.size_bytes) == (len(ended), len(data))
    assert window.sha256 == hashlib.sha256(data).hexdigest()


@given(st.binary(max_size=50))
def test_content_survives_encoding_and_decoding(data: bytes) -> None:
    for encoding in ("auto", "base64"):
        content, form = encode(data, encoding=encoding)
        assert decode(content, form) == data


@given(st.text(max_size=80), st.integers(1, 30), st.integers(1, 7))
def test_long_output_is_reduced_to_its_head_and_tail(text: str, limit: int, step: int) -> None:
    output, data = OutputBuffer(kept_bytes(limit)), text.encode()
    for at in range(0, len(data), step):
        output.write(data[at : at + step])

    result, cut = show_output(output.value(), limit)

    assert cut == (len(text) > limit)
    if cut:
        head, notice, tail = re.fullmatch(
            r"(.*?)\n(\[\.\.\. \d+ bytes are not shown \.\.\.\])\n(.*)", result, re.S
        ).groups()  # type: ignore[union-attr]
        assert (head, tail) == (text[: (limit + 1) // 2], text[len(text) - limit // 2 :])
        assert int(notice.split()[1]) == len(data) - len(head.encode()) - len(tail.encode())
    else:
        assert result == text


def test_the_memory_for_an_endless_stream_is_bounded() -> None:
    """W9."""
    output = OutputBuffer(kept_bytes(100))
    for _ in range(2000):
        output.write(b"x" * 10_000)

    assert len(output._head) + len(output._tail) <= 2000
    assert show_output(output.value(), 100)[0].startswith("x" * 50 + "\n[... 19999900 bytes")


@given(st.lists(st.binary(max_size=30)))
def test_invalid_records_of_listings_and_searches_are_ignored(chunks: list[bytes]) -> None:
    entries, lines = Entries(), SearchLines(5, 1000)
    for chunk in chunks:
        entries.write(chunk)
        lines.write(chunk)

    assert all(isinstance(entry["size"], int) for entry in entries.found)
    assert lines.matches <= 5


def test_a_search_parses_split_records_and_stops_at_its_limit() -> None:
    lines = SearchLines(2, 1000)
    for piece in (
        b".",
        b"/a\nb\0",
        b"1:x",
        b"x\n--\n./c\0",
        b"7-y\n./c\0002:",
        b"z" * 200_000,
        b"end\n",
    ):
        lines.write(piece)

    assert [(path, rest[:6]) for path, rest in lines.found] == [
        ("a\nb", ":1:xx"),
        ("c", "-7-y"),
        ("c", ":2:zzz"),
    ]
    with pytest.raises(EnoughError):
        lines.write(b"./d\x001:x\n")


def test_the_memory_for_an_endless_listing_or_search_is_bounded() -> None:
    """Root in a container may replace the container's programs."""
    entries, lines = Entries(), SearchLines(5, 1000)
    for _ in range(50):
        entries.write(b"x" * 1_000_000)
        lines.write(b"x" * 1_000_000)

    assert len(entries._rest) <= 65536
    assert len(lines._buffer) <= 65536


def _tar(*members: tuple[str, bytes, bytes]) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, data in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, len(data)
            info.linkname = "target"
            tar.addfile(info, io.BytesIO(data))
    out.seek(0)
    return out


def test_unsafe_members_of_an_archive_are_removed() -> None:
    source = _tar(
        ("../up", tarfile.REGTYPE, b"1"), ("/abs", tarfile.REGTYPE, b"2"), ("ok", tarfile.REGTYPE, b"3"),
        ("./ok", tarfile.REGTYPE, b"4"), ("dev", tarfile.CHRTYPE, b""), ("a/../../b", tarfile.REGTYPE, b"5"),
    )  # fmt: skip

    packed = pack(source, "zip", max_bytes=10_000, max_entries=10)

    assert [entry["path"] for entry in packed.entries] == ["ok"]
    assert len(packed.problems) == 5


def test_an_archive_beyond_its_limits_is_rejected() -> None:
    for form in ("tar", "tar.gz", "zip"):
        with pytest.raises(TransferError, match="larger than 50 bytes"):
            pack(_tar(("a", tarfile.REGTYPE, bytes(range(256)))), form, max_bytes=50, max_entries=9)
        with pytest.raises(TransferError, match="more than 1 entries"):
            pack(
                _tar(*[(n, tarfile.DIRTYPE, b"") for n in "ab"]),
                form,
                max_bytes=50_000,
                max_entries=1,
            )
        with pytest.raises(TransferError):
            pack(io.BytesIO(b"no tar" * 1000), form, max_bytes=50_000, max_entries=1)


def test_the_tool_names_of_a_policy_are_the_existing_tools() -> None:
    assert set(TOOL_NAMES) == {*TOOLS, *ALIASES}


@given(st.text(max_size=60), st.integers(2, 40), st.integers(1, 7))
def test_a_limit_of_output_never_cuts_inside_a_character(text: str, limit: int, step: int) -> None:
    output, data = OutputBuffer(limit), text.encode()
    for at in range(0, len(data), step):
        output.write(data[at : at + step])

    kept = output.value().decode()  # strictly

    assert (kept != text) == (len(data) > limit)
    if parts := split_kept(kept.encode(), limit):
        head, dropped, tail = parts
        assert data.startswith(head)
        assert data.endswith(tail)
        assert len(head) + dropped + len(tail) == len(data)
