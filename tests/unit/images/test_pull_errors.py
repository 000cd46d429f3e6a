"""The cause of a failed pull, derived from messages of Podman, Docker and Apptainer."""

from __future__ import annotations

import pytest

from hyperruntime.errors import (
    ImageLoginError,
    ImagePullError,
    ImageUnknownError,
    RegistryUnreachableError,
)
from hyperruntime.images.pull_errors import explain_pull, is_local, is_loopback, registry_of

SOURCE = "Error: initializing source docker://r.example/a:1: "
CASES = [
    (
        f"{SOURCE}reading manifest 1 in r.example/a: manifest unknown: manifest unknown",
        ImageUnknownError,
    ),
    ("manifest for r.example/a:1 not found: manifest unknown: manifest unknown", ImageUnknownError),
    (
        f"{SOURCE}reading manifest 1 in r.example/a: unauthorized: authentication required",
        ImageLoginError,
    ),
    (
        "pull access denied for a, repository does not exist or may require 'docker login': denied",
        ImageLoginError,
    ),
    ('Get "https://r.example/v2/a/manifests/1": no basic auth credentials', ImageLoginError),
    (
        f"{SOURCE}pinging container registry: dial tcp 1.2.3.4:1: connect: connection refused",
        RegistryUnreachableError,
    ),
    (f"{SOURCE}dial tcp: lookup r.example on 10.0.0.1:53: no such host", RegistryUnreachableError),
    (f"{SOURCE}http: server gave HTTP response to HTTPS client", RegistryUnreachableError),
    (
        f"{SOURCE}tls: failed to verify certificate: x509: signed by unknown authority",
        RegistryUnreachableError,
    ),
    (f"{SOURCE}received unexpected HTTP status: 503 Service Unavailable", RegistryUnreachableError),
    ("Error: writing blob: no space left on device", ImagePullError),
    ("", ImagePullError),
]


@pytest.mark.parametrize(("output", "kind"), CASES)
def test_each_cause_has_its_own_error(output: str, kind: type[ImagePullError]) -> None:
    error = explain_pull(
        "r.example/a:1", f"Trying to pull r.example/a:1...\n{output}\n" if output else "", "x login"
    )
    assert type(error) is kind
    assert str(error).startswith("image 'r.example/a:1' was not pulled: ")
    assert "\n" not in str(error)


def test_the_next_step_depends_on_the_cause() -> None:
    outputs = {output: str(explain_pull("r.example/a:1", output, "x login")) for output, _ in CASES}
    assert "log in with `x login r.example`" in outputs[CASES[2][0]]
    assert (
        "plain HTTP, which is allowed only on loopback addresses of this machine"
        in outputs[CASES[7][0]]
    )
    assert "no space left on device" in outputs[CASES[10][0]]


def test_warnings_about_retries_are_not_the_cause() -> None:
    output = (
        f'{SOURCE}manifest unknown\ntime="x" level=warning msg="Failed, retrying in 1s: '
        'connection refused"\n'
    )
    assert isinstance(explain_pull("r.example/a:1", output, "x login"), ImageUnknownError)


def test_a_short_name_error_suggests_a_name_with_a_registry() -> None:
    said = (
        'Error: short-name "a:1" did not resolve to an alias and no unqualified-search '
        "registries are defined"
    )
    assert "docker.io/library/a:1" in str(explain_pull("a:1", said, "x login"))


@pytest.mark.parametrize(
    ("reference", "registry", "loopback"),
    [
        ("debian", "docker.io", False),
        ("library/debian", "docker.io", False),
        ("quay.io/a/b:1", "quay.io", False),
        ("localhost:5000/a", "localhost:5000", True),
        ("127.0.0.1:5000/a:1", "127.0.0.1:5000", True),
        ("127.8.9.1/a", "127.8.9.1", True),
        ("[::1]:5000/a", "[::1]:5000", True),
        ("127.0.0.1.example.org/a", "127.0.0.1.example.org", False),
        ("localhost.example.org:80/a", "localhost.example.org:80", False),
        ("10.0.0.1:5000/a", "10.0.0.1:5000", False),
    ],
)
def test_the_registry_of_a_reference_and_whether_it_is_on_loopback(
    reference: str, registry: str, loopback: bool
) -> None:
    assert registry_of(reference) == registry
    assert is_loopback(reference) == loopback


def test_images_built_here_belong_to_no_registry() -> None:
    assert is_local("localhost/a:1")
    assert not is_local("localhost:5000/a:1")
