"""The instructions that an image has for builds from it, as Podman reads them."""

from __future__ import annotations

import pytest

from hyperruntime_podman.bases import is_for, triggers_of


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


@pytest.mark.parametrize(
    ("configuration", "fitting"),
    [
        (
            b'{"os": "linux", "architecture": "arm64", "variant": "v8"}',
            "arm64 arm64/v8 arm64/8 aarch64",
        ),
        (b'{"os": "linux", "architecture": "arm64"}', "arm64 arm64/v8 arm64/8 aarch64"),
        (b'{"os": "linux", "architecture": "arm", "variant": "v7"}', "arm arm/v7"),
        (b'{"os": "linux", "architecture": "arm", "variant": "v6"}', "arm/v6"),
        (b'{"os": "linux", "architecture": "amd64", "variant": null}', "amd64 x86_64"),
        (b"[" * 100_000, ""),
    ],
)
def test_an_image_is_for_the_platforms_that_podman_takes_it_for(
    configuration: bytes, fitting: str
) -> None:
    """As Podman 4.3 does with `--pull=never`; an image that does not fit is pulled again."""
    platforms = "arm64 arm64/v8 arm64/8 aarch64 arm arm/v7 arm/v6 amd64 x86_64 amd64/v3".split()
    found = [name for name in platforms if is_for(f"linux/{name}", configuration)]
    assert found == [name for name in platforms if name in fitting.split()]
    assert not is_for("windows/arm64", configuration)
