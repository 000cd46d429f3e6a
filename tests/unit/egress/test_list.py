"""The list of servers that a container may reach: what an entry allows, and what it never does."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hyperruntime as hr
from hyperruntime.errors import SpecError
from hyperruntime.network.egress import as_address, host_name, special_kind

LIST = hr.Egress(
    allow=(
        "pypi.org",
        "*.pythonhosted.org",
        "git.example.org:8443",
        "10.1.2.0/24:5432",
        "[fd00::1]",
        "*.Bücher.example",
    )
)


@pytest.mark.parametrize(
    ("name", "port", "refused"),
    [
        ("pypi.org", 443, ""),
        ("pypi.org", 80, ""),
        ("pypi.org", 8080, "pypi.org is in the list with port 80 and 443, not 8080"),
        ("www.pypi.org", 443, "www.pypi.org is not in the list"),
        ("xpypi.org", 443, "xpypi.org is not in the list"),
        ("files.pythonhosted.org", 443, ""),
        ("a.b.pythonhosted.org", 443, ""),
        ("pythonhosted.org", 443, "pythonhosted.org is not in the list"),
        ("evilpythonhosted.org", 443, "evilpythonhosted.org is not in the list"),
        ("pythonhosted.org.evil.org", 443, "pythonhosted.org.evil.org is not in the list"),
        ("git.example.org", 8443, ""),
        ("git.example.org", 443, "git.example.org is in the list with port 8443, not 443"),
        ("www.xn--bcher-kva.example", 443, ""),
    ],
)
def test_a_name_is_allowed_as_the_list_says(name: str, port: int, refused: str) -> None:
    assert LIST.refuses_name(name, port) == refused


@pytest.mark.parametrize(
    ("address", "port", "refused"),
    [
        ("10.1.2.9", 5432, False),
        ("10.1.2.9", 443, True),
        ("10.1.3.9", 5432, True),
        ("fd00::1", 443, False),
        ("93.184.216.34", 443, True),
    ],
)
def test_an_address_must_be_named(address: str, port: int, refused: bool) -> None:
    assert bool(LIST.refuses_address(ipaddress.ip_address(address), port)) is refused


def test_a_star_is_every_name_and_no_address() -> None:
    every = hr.Egress(allow=("*",))
    assert not every.refuses_name("anything.example", 443)
    assert every.refuses_address(ipaddress.ip_address("93.184.216.34"), 443)


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "https://pypi.org",
        "pypi.org/simple",
        "pypi.org:0",
        "pypi.org:65536",
        "user@pypi.org",
        "a..b",
        "-.org",
        "*pypi.org",
        "**.org",
        "*.*.org",
        "127.1",
        "0x7f000001",
        "2130706433",
        "10.0.0.1/8",
        "10.0.0.0/33",
        "fd00::1",
        "localhost",
        "pypi org",
        "pypi.org\n",
        "x" * 64 + ".org",
        "straße.de",
        7,
        None,
    ],
)
def test_an_entry_that_is_none_is_refused_by_name(entry: Any) -> None:
    with pytest.raises(SpecError, match=r"Egress\.allow"):
        hr.Egress(allow=("pypi.org", entry))


def test_a_text_is_no_list() -> None:
    with pytest.raises(SpecError, match="a list of names"):
        hr.Egress(allow="pypi.org")


@pytest.mark.parametrize(
    "hosts", [{"Index.test": "127.0.0.1"}, {"index.test": "localhost"}, {"": "127.0.0.1"}]
)
def test_hosts_are_names_with_addresses(hosts: dict[str, str]) -> None:
    with pytest.raises(SpecError, match=r"Egress.hosts\["):
        hr.Egress(allow=(), hosts=hosts)


@pytest.mark.parametrize(
    "limits", [{"limit_bytes": 0}, {"limit_connections": 1.5}, {"limit_s": -1}, {"limit_s": True}]
)
def test_limits_are_positive(limits: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"Egress\.limit_"):
        hr.Egress(allow=(), **limits)


# Source: the registries of special addresses of IANA, and the forms of RFC 4291, 3056, 4380, 6052.
@pytest.mark.parametrize(
    "address",
    """
    0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 127.8.9.10 169.254.169.254 172.16.0.1 192.0.0.1 192.0.2.1
    192.168.1.1 198.18.0.1 224.0.0.1 240.0.0.1 255.255.255.255 :: ::1 ::127.0.0.1 ::ffff:10.0.0.1
    64:ff9b::a00:1 64:ff9b:1::a00:1 2001:0:a00:1:: 2001:db8::1 2002:a00:1:: fc00::1 fd00:ec2::254
    fe80::1 fec0::1 ff02::1 5f00::1
    """.split(),
)
def test_an_address_that_is_not_public_has_a_kind(address: str) -> None:
    assert special_kind(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    "8.8.8.8 93.184.216.34 2606:4700::1111 ::ffff:8.8.8.8 64:ff9b::808:808 2002:808:808::".split(),
)
def test_a_public_address_has_none(address: str) -> None:
    assert not special_kind(ipaddress.ip_address(address))


@given(st.integers(min_value=0, max_value=2**32 - 1))
def test_all_forms_of_an_address_count_as_one(number: int) -> None:
    plain = special_kind(ipaddress.IPv4Address(number))
    for form in (0xFFFF << 32, 0x64FF9B << 96):
        assert special_kind(ipaddress.IPv6Address(form | number)) == plain
    assert special_kind(ipaddress.IPv6Address(0x2002 << 112 | number << 80)) == plain


@given(st.text(max_size=40))
def test_a_host_is_a_name_or_an_address_and_never_both(text: str) -> None:
    name = host_name(text)
    assert not name or as_address(name) is None
    assert host_name(name) == name


@given(st.integers(min_value=0, max_value=2**32 - 1), st.sampled_from(["{:d}", "0x{:x}", "0{:o}"]))
def test_a_number_is_no_name(number: int, form: str) -> None:
    assert host_name(form.format(number)) == ""


@pytest.mark.parametrize(
    ("asked", "covered"),
    [
        (("pypi.org",), True),
        (("pypi.org:443",), True),
        (("pypi.org:8443",), False),
        (("files.pythonhosted.org",), True),
        (("*.a.pythonhosted.org",), True),
        (("pythonhosted.org",), False),
        (("*.org",), False),
        (("*",), False),
        (("10.1.2.0/24:5432",), True),
        (("10.1.0.0/16:5432",), False),
        (("10.1.2.9:5432",), True),
        (("10.1.2.9",), False),
        ((), True),
    ],
)
def test_a_list_covers_a_narrower_one(asked: tuple[str, ...], covered: bool) -> None:
    assert LIST.covers(hr.Egress(allow=asked)) is covered
