"""The instructions that an image has for builds from it, as Podman reads them."""

from __future__ import annotations

import pytest

from hyperruntime_podman.bases import triggers_of


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        (b'{"config": {"OnBuild": null}}', []),
        (b'{"config": {"OnBuild": ["RUN x", "COPY a b"]}}', ["RUN x", "COPY a b"]),
        (b'{"CONFIG": {"onBUILD": ["RUN x"]}}', ["RUN x"]),
        (b'{"config": {"OnBuild": ["RUN x"]}, "config": {}}', ["RUN x"]),
        (b'{"config": {"OnBuild": ["RUN x"], "onbuild": ["RUN y"]}}', ["RUN x", "RUN y"]),
        (b'{"config": {"OnBuild": "RUN x"}}', ["RUN x"]),
        (b'{"config": {"OnBuild": [3]}}', ["3"]),
        (b"[" * 100_000, ["?"]),
        (b"\xff", ["?"]),
    ],
)
def test_the_instructions_are_found_in_any_form(configuration: bytes, expected: list[str]) -> None:
    assert triggers_of(configuration) == expected
