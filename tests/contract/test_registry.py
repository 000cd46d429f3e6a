"""Pulls from a real registry, and a separate error for each problem."""

from __future__ import annotations

import json
import socket
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import (
    ImageLoginError,
    ImageNotFoundError,
    ImagePullError,
    ImageUnknownError,
    RegistryUnreachableError,
)
from hyperruntime.host.process import ProcessResult, run_process
from hyperruntime.spec import Pull
from tests.command import cli
from tests.doubles.packages import make_certificates
from tests.doubles.site_proxy import run_site_proxy
from tests.registry import PASSWORD, USER, Registry, run_registry

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with run_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry that requires a login, with one image."""
    directory = tmp_path_factory.mktemp("locked")
    with run_registry(directory) as open_one:
        open_one.push_busybox("some/image", "1", "behind a login\n")
    with run_registry(directory, locked=True) as running:
        yield running


def greeting(runtime: hr.Runtime, reference: str) -> bytes:
    with runtime.container(hr.ContainerSpec(image=reference)) as container:
        return container.exec(["cat", "/greeting"]).check().stdout


def test_an_image_is_pulled_and_pulled_again_after_its_tag_has_moved(
    runtime: hr.Runtime, registry: Registry
) -> None:
    reference = registry.push_busybox("some/image", "1", "hello\n")
    lines: list[str] = []
    try:
        assert not runtime.images.exists(reference)
        assert runtime.images.pull(reference, on_output=lines.append) == reference
        assert runtime.images.exists(reference)
        assert lines
        assert greeting(runtime, reference) == b"hello\n"
        registry.push_busybox("some/image", "1", "hello again\n")
        runtime.images.pull(reference)
        assert greeting(runtime, reference) == b"hello again\n"
    finally:
        runtime.images.remove(reference)


def test_a_spec_says_when_its_image_is_pulled(runtime: hr.Runtime, registry: Registry) -> None:
    reference = registry.push_busybox("of/a/spec", "1", "first\n")

    def started(pull: Pull) -> bytes:
        with runtime.container(hr.ContainerSpec(image=reference, pull=pull)) as container:
            return container.exec(["cat", "/greeting"]).check().stdout

    try:
        with pytest.raises(ImageNotFoundError):
            started("never")
        assert started("missing") == b"first\n"
        registry.push_busybox("of/a/spec", "1", "second\n")
        assert (started("never"), started("missing")) == (b"first\n", b"first\n")
        assert started("always") == b"second\n"
    finally:
        runtime.images.remove(reference)
    unknown = hr.ContainerSpec(image=reference.replace("of/a/spec", "of/no/spec"), pull="missing")
    with pytest.raises(ImageUnknownError):
        runtime.container(unknown)


@pytest.mark.slow
def test_the_command_line_pulls_when_it_is_told_to(
    runtime: hr.Runtime, runtime_name: str, registry: Registry
) -> None:
    reference = registry.push_busybox("of/a/command", "1", "first\n")

    def said(pull: str) -> ProcessResult:
        words = ["--runtime", runtime_name, "exec", "--image", reference, "--pull", pull]
        return run_process(cli(*words, "--", "cat", "/greeting"), timeout_s=120)

    try:
        refused = said("never")
        assert (refused.exit_code, refused.stdout) == (2, b"")
        assert f"get it with `hyperrun image pull {reference}`".encode() in refused.stderr
        assert said("missing").stdout == b"first\n"
        registry.push_busybox("of/a/command", "1", "second\n")
        assert (said("missing").stdout, said("always").stdout) == (b"first\n", b"second\n")
    finally:
        runtime.images.remove(reference)


@pytest.mark.slow
def test_the_tag_is_optional(runtime: hr.Runtime, registry: Registry) -> None:
    reference = registry.push_busybox("deep/er/image", "latest", "x\n").removesuffix(":latest")
    try:
        runtime.images.pull(reference)
        assert runtime.images.exists(reference)
        assert runtime.images.exists(f"{reference}:latest")
        assert not runtime.images.exists(f"{reference}:1")
    finally:
        runtime.images.remove(reference)


def test_an_image_is_pulled_by_its_digest(runtime: hr.Runtime, registry: Registry) -> None:
    registry.push_busybox("by/digest", "1", "the very one\n")
    reference = registry.digests["by/digest:1"]
    registry.push_busybox("by/digest", "1", "another\n")
    try:
        runtime.images.pull(reference)
        assert runtime.images.exists(reference)
        assert runtime.images.ensure(reference) == reference
        assert not runtime.images.exists(reference.replace("@sha256:", "@sha256:0")[:-1])
        assert greeting(runtime, reference) == b"the very one\n"
    finally:
        runtime.images.remove(reference)


@pytest.mark.parametrize("name", ["some/image:2", "no/image", "no/image:1"])
def test_a_wrong_name_or_tag_is_an_error(
    runtime: hr.Runtime, registry: Registry, name: str
) -> None:
    registry.push_busybox("some/image", "1", "hello\n")
    with pytest.raises(
        ImageUnknownError, match=r"has no such image or tag.*check the name and the tag"
    ) as caught:
        runtime.images.pull(f"{registry.address}/{name}")
    assert f"{registry.address}/{name}" in str(caught.value)
    assert not runtime.images.exists(f"{registry.address}/{name}")


def test_the_error_of_a_refused_login_names_the_login_command(
    runtime: hr.Runtime, locked: Registry
) -> None:
    with pytest.raises(
        ImageLoginError, match=rf"refused the login.*log in with `.* (docker://)?{locked.address}`"
    ):
        runtime.images.pull(f"{locked.address}/some/image:1")


@pytest.mark.slow
def test_a_registry_that_does_not_answer_is_an_error(runtime: hr.Runtime) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening, so no other program has the port
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(
            RegistryUnreachableError, match=rf"registry {address} cannot be reached.*refused"
        ):
            runtime.images.pull(f"{address}/some/image:1")


def test_an_unknown_registry_is_an_error(runtime: hr.Runtime) -> None:
    with pytest.raises(
        RegistryUnreachableError, match=r"nothing\.invalid cannot be reached.*hyperrun image load"
    ):
        runtime.images.pull("nothing.invalid/some/image:1")


def test_pulling_an_unknown_name_without_a_registry_is_an_error(runtime: hr.Runtime) -> None:
    with pytest.raises(ImagePullError):
        runtime.images.pull("hyperruntime-test-no-such-image:1")


def test_plain_http_is_used_only_on_the_loopback_interface(
    runtime: hr.Runtime, tmp_path: Path
) -> None:
    address = own_address()
    with run_registry(tmp_path, host=address) as running:
        reference = running.push_busybox("some/image", "1", "hello\n")
        with pytest.raises(
            RegistryUnreachableError, match="plain HTTP, which is allowed only on loopback addr"
        ):
            runtime.images.pull(reference)
        assert not runtime.images.exists(reference)


def test_a_pull_goes_through_the_proxy_of_the_site_which_no_container_sees(
    runtime: hr.Runtime, runtime_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the proxy knows the host of the registry."""
    if runtime_name == "docker":
        pytest.skip("its daemon pulls, through the proxy of its own configuration")
    with run_registry(tmp_path / "registry") as filling:
        filling.push_busybox("some/image", "1", "through a proxy\n")
    monkeypatch.setenv("SSL_CERT_FILE", str(make_certificates(tmp_path, "registry.invalid")))
    with (
        run_registry(tmp_path / "registry", certificates=tmp_path) as running,
        run_site_proxy({"registry.invalid:443": int(running.address.rpartition(":")[2])}) as proxy,
    ):
        for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        reference = "registry.invalid/some/image:1"
        try:
            runtime.images.pull(reference)
            assert set(proxy.asked) == {"registry.invalid:443"}
            with runtime.container(hr.ContainerSpec(image=reference)) as container:
                assert container.exec(["cat", "/greeting"]).stdout == b"through a proxy\n"
                assert b"proxy" not in container.exec(["env"]).stdout.lower()
        finally:
            if runtime.images.exists(reference):
                runtime.images.remove(reference)
        asked = len(proxy.asked)
        monkeypatch.setenv("no_proxy", "registry.invalid")
        with pytest.raises(RegistryUnreachableError):
            runtime.images.pull(reference)
        assert len(proxy.asked) == asked


@pytest.mark.slow
def test_podmans_login_opens_a_locked_registry(
    locked: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test always uses Podman, because the other engines read their logins when they start."""
    reference = f"{locked.address}/some/image:1"
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    with hr.open_runtime("podman") as runtime:
        for password in ("wrong", PASSWORD):
            secret = b64encode(f"{USER}:{password}".encode()).decode()
            (tmp_path / "auth.json").write_text(
                json.dumps({"auths": {locked.address: {"auth": secret}}})
            )
            if password != PASSWORD:
                with pytest.raises(ImageLoginError):
                    runtime.images.pull(reference)
        try:
            runtime.images.pull(reference)
            assert greeting(runtime, reference) == b"behind a login\n"
        finally:
            if runtime.images.exists(reference):
                runtime.images.remove(reference)


def own_address() -> str:
    """Return an address of this machine that is not a loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        address = str(probe.getsockname()[0])
    assert not address.startswith("127."), "this machine has only loopback addresses"
    return address
