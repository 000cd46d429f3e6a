"""A container that builds wheels gets this machine's network as files, and only what it needs of
them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hyperruntime.host.process import python_args
from hyperruntime.images.packages.network import (
    certificates,
    pip_settings,
    proxies,
    unreachable,
    without_login,
    write_settings,
)
from tests.doubles.packages import HOST, make_repository, serve_packages

ONE, TWO = (
    f"-----BEGIN CERTIFICATE-----\n{letter * 8}\n-----END CERTIFICATE-----" for letter in "ab"
)


def test_a_proxy_is_passed_in_both_spellings() -> None:
    given = {"HTTP_PROXY": "http://a", "no_proxy": "b", "NO_PROXY": "c", "https_proxy": ""}
    assert proxies(given) == {
        "HTTP_PROXY": "http://a",
        "http_proxy": "http://a",
        "no_proxy": "b",
        "NO_PROXY": "c",
    }


def test_the_certificates_of_all_variables_are_together_and_each_is_there_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "one.pem").write_text(f"a comment\n{ONE}\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/both.crt").write_text(f"{ONE}\n{TWO}\n")
    environ = {
        "SSL_CERT_FILE": str(tmp_path / "one.pem"),
        "SSL_CERT_DIR": str(tmp_path / "folder"),
        "PIP_CERT": "/no",
    }
    found = certificates(environ, str(tmp_path / "absent"))
    assert (found.count(ONE), found.count(TWO)) == (1, 1)


def test_a_message_shows_no_login() -> None:
    assert without_login("x https://me:secret@example.org/a git+https://tok@b/c@v1") == (
        "x https://***@example.org/a git+https://***@b/c@v1"
    )


def test_the_settings_of_pip_come_from_its_files_and_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://a/simple\ntimeout = 7\n[wheel]\npre = true\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:it's@b/simple")
    found = pip_settings(python_args("-m", "pip"))
    assert (found["index-url"], found["timeout"], found["pre"]) == (
        "https://me:it's@b/simple",
        "7",
        "true",
    )


def test_a_container_gets_settings_without_paths_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(ONE)
    (tmp_path / "c.txt").write_text("numpy<3\n")
    (tmp_path / "netrc").write_text(
        "machine a login me password secret\nmachine other login x password private\n"
    )
    folder = tmp_path / "settings"
    folder.mkdir()
    settings = {
        "index-url": "https://a/simple",
        "extra-index-url": "file:///opt/simple https://b/simple",
        "find-links": "/opt/wheels",
        "cert": str(tmp_path / "ca.pem"),
        "constraint": str(tmp_path / "c.txt"),
        "trusted-host": "a\nb",
        "user": "true",
    }
    env = write_settings(
        folder, settings, {"HTTPS_PROXY": "http://p", "NETRC": str(tmp_path / "netrc"), "KEY": "k"}
    )
    assert (folder / "pip.conf").read_text().splitlines() == [
        "[global]",
        "trusted-host = a b",
        "index-url = https://a/simple",
        "extra-index-url = https://b/simple",
        "cert = /hyperruntime-pip/certificates.pem",
        "find-links = /hyperruntime-pip/wheels",
        "constraint = /hyperruntime-pip/constraints.txt",
    ]
    assert ONE in (folder / "certificates.pem").read_text()
    assert (folder / "constraints.txt").read_text() == "numpy<3\n"
    assert (folder / "netrc").read_text() == "machine a login me password secret\n"
    assert env["https_proxy"] == env["HTTPS_PROXY"] == "http://p"
    assert "KEY" not in env
    assert (
        env["REQUESTS_CA_BUNDLE"] == env["GIT_SSL_CAINFO"] == "/hyperruntime-pip/certificates.pem"
    )


@pytest.mark.parametrize(
    ("more", "expected"),
    [("", ["no-index = true"]), ("https://b/simple", ["index-url = https://b/simple"])],
)
def test_an_index_of_files_is_never_replaced_by_the_public_one(
    more: str, expected: list[str], tmp_path: Path
) -> None:
    write_settings(tmp_path, {"index-url": "file:///opt/simple", "extra-index-url": more}, {})
    rows = (tmp_path / "pip.conf").read_text().splitlines()
    assert [row for row in rows if "index" in row] == expected


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
def test_a_repository_is_looked_for_with_the_proxy_and_the_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serve_packages(tmp_path) as index:
        (tmp_path / "git").mkdir()
        make_repository(tmp_path / "git/there.git", {"a": "b"})
        monkeypatch.setenv("HTTPS_PROXY", index.proxy)
        settings = {"cert": str(index.certificate)}
        assert unreachable(f"git+https://{HOST}/git/there.git@v1#egg=x", settings, {}) == ""
        assert "404" in unreachable(f"git+https://{HOST}/git/none.git", settings, {})
        assert "cannot be reached" in unreachable("https://other.invalid/a.zip", settings, {})
        assert "certificate" in unreachable(f"git+https://{HOST}/git/there.git", {}, {})
        assert set(index.through) == {f"{HOST}:443", "other.invalid:443"}
