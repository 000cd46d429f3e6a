"""Which network a container has: none, the host's, the engine's, or a list of names.

How a list is kept: docs/design/containers.md#egress.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.json_values import is_integer, is_number
from hyperruntime.pickling import frozen_mapping

Network = Literal["none", "host", "bridge"]
NETWORKS: tuple[str, ...] = ("none", "host", "bridge")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Range = ipaddress.IPv4Network | ipaddress.IPv6Network

_PORTS = (80, 443)
_MAX_PORT = 65535
# Source: RFC 1035 and RFC 1123; underscores are in use, and IDNA makes other letters ASCII.
_LABEL = "[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
# Resolvers read `127.1`, `0x7f000001` and `2130706433` as addresses; source: inet_aton(3), and
# "ends in a number" of the URL standard.
_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_ENTRY = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\](?P<bits>/[0-9]{1,3})?|(?P<rest>[^:\[\]]+))(?::(?P<port>[0-9]{1,5}))?"
)
_WITHIN = ipaddress.ip_network("2000::/3")
# a server of the host of a virtual machine, which Azure gives to each of them
_OF_CLOUDS = (ipaddress.ip_address("168.63.129.16"),)
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")


def _texts(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - checked here
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise SpecError("Egress.allow", value, "a list of names, such as ['pypi.org']")
    return tuple(value)


@attrs.frozen
class _Rule:
    """One entry of a list: a name, what lies below a name, all names, or a range of addresses."""

    name: str
    below: bool
    addresses: _Range | None
    ports: tuple[int, ...]

    def has_name(self, name: str) -> bool:
        if self.addresses is not None:
            return False
        return name.endswith(f".{self.name}".rstrip(".")) if self.below else name == self.name

    def has_address(self, address: Address) -> bool:
        ranges = self.addresses
        return ranges is not None and address.version == ranges.version and address in ranges


@attrs.frozen(kw_only=True)
class Egress:
    """A network with a list: the container reaches the named servers and nothing else.

    The container has no network. A proxy on its loopback, which ``HTTP_PROXY`` and its like name,
    leads to this machine, which resolves the name, checks the address and connects; see
    docs/egress.md.

    Attributes:
        allow: entries of the list. ``pypi.org`` is one name, ``*.example.org`` all names below it,
            ``*`` every name; ``10.1.2.3``, ``10.0.0.0/8`` and ``[fd00::1]`` are addresses. Each may
            have a port, as in ``git.example.org:8443``; without one it has 80 and 443.
            An address that is private, or this machine's own, is refused unless an address of the
            list names it.
        hosts: addresses of names that this machine does not resolve, or not so; an address here
            counts as named.
        limit_bytes: bytes in both directions, in all; None means no limit.
        limit_connections: connections in all; None means no limit.
        limit_s: seconds from when it was set; then its connections end. None means no limit.

    Example:
        >>> egress = hr.Egress(allow=("pypi.org", "*.pythonhosted.org", "git.example.org:8443"))
        >>> hr.ContainerSpec(image="base", network=egress).network.allow[0]
        'pypi.org'
    """

    allow: tuple[str, ...] = attrs.field(converter=_texts)
    hosts: Mapping[str, str] = attrs.field(default=None, converter=frozen_mapping)
    limit_bytes: int | None = None
    limit_connections: int | None = None
    limit_s: float | None = None

    def __attrs_post_init__(self) -> None:
        """Read and check every entry."""
        for entry in self.allow:
            if not isinstance(entry, str):
                raise _wrong(entry)
        _rules_of(self.allow)
        for name, address in self.hosts.items():
            where = f"Egress.hosts[{name}]"
            if not name or host_name(name) != name:
                raise SpecError(where, name, "a name in small letters, such as index.example.org")
            if as_address(address) is None:
                raise SpecError(where, address, "an IP address")
        for field in ("limit_bytes", "limit_connections"):
            value = getattr(self, field)
            if value is not None and not (is_integer(value) and value > 0):
                raise SpecError(f"Egress.{field}", value, "a whole number above 0, or None")
        if self.limit_s is not None and not (is_number(self.limit_s) and self.limit_s > 0):
            raise SpecError("Egress.limit_s", self.limit_s, "seconds above 0, or None")

    def refuses_name(self, name: str, port: int) -> str:
        """Return why a name may not be reached at a port, for a sentence; "" if it may."""
        return self._refuses(
            name, port, [rule for rule in _rules_of(self.allow) if rule.has_name(name)]
        )

    def refuses_address(self, address: Address, port: int) -> str:
        """Return why an address that a client names may not be reached; "" if it may."""
        rules = [rule for rule in _rules_of(self.allow) if rule.has_address(address)]
        return self._refuses(str(address), port, rules)

    def refuses_answer(self, name: str, address: Address, port: int, kind: str) -> str:
        """Return why a name may not lead to an address, which has a kind; "" if it may."""
        if not kind or self.hosts.get(name) == str(address):
            return ""
        is_named = not self.refuses_address(address, port)
        return "" if is_named else f"{name} leads to {address}, {kind}, and is not in the list"

    @property
    def special(self) -> tuple[str, ...]:
        """The entries that are addresses which are not public."""
        return tuple(
            entry
            for entry, rule in zip(self.allow, _rules_of(self.allow), strict=True)
            if rule.addresses is not None
            and any(map(special_kind, (rule.addresses[0], rule.addresses[-1])))
        )

    def covers(self, other: Egress) -> bool:
        """Return whether all that another list allows is allowed here."""
        rules = _rules_of(self.allow)
        return (
            all(_is_within(rule, rules) for rule in _rules_of(other.allow))
            and other.hosts.items() <= self.hosts.items()
        )

    @staticmethod
    def _refuses(what: str, port: int, rules: list[_Rule]) -> str:
        if not rules:
            return f"{what} is not in the list"
        if not any(port in rule.ports for rule in rules):
            ports = sorted({one for rule in rules for one in rule.ports})
            return f"{what} is in the list with port {' and '.join(map(str, ports))}, not {port}"
        return ""


def _is_within(asked: _Rule, rules: tuple[_Rule, ...]) -> bool:
    """Return whether other rules allow all that a rule does."""
    return all(any(_has(rule, asked, port) for rule in rules) for port in asked.ports)


def _has(rule: _Rule, asked: _Rule, port: int) -> bool:
    if port not in rule.ports or (rule.addresses is None) != (asked.addresses is None):
        return False
    if rule.addresses is not None and asked.addresses is not None:
        same = rule.addresses.version == asked.addresses.version
        return same and asked.addresses.subnet_of(rule.addresses)  # type: ignore[arg-type]
    if not rule.below or (asked.name == rule.name and not asked.below):
        return (rule.name, rule.below) == (asked.name, asked.below)
    return f".{asked.name}".endswith(f".{rule.name}".rstrip("."))


def network_of(network: Network | Egress, allow: tuple[str, ...]) -> Network | Egress:
    """Return the network that the options ``network`` and ``allow`` describe together.

    Raises:
        SpecError: an entry of the list is malformed, or the network is another one than ``none``.
    """
    if not allow:
        return network
    if network != "none":
        raise SpecError(
            "allow", allow, f"a list or the network {network!r}, not both: give one of them"
        )
    return Egress(allow=allow)


def as_address(text: object) -> Address | None:
    """Return the address that a text writes in its usual form, or None."""
    try:
        found = ipaddress.ip_address(str(text))
    except ValueError:
        return None
    return None if getattr(found, "scope_id", None) else found


def host_name(text: str) -> str:
    """Return a name of a server in small letters, without a last dot; "" if it is none.

    A number in another form than an address, which resolvers read as one, is none.
    """
    name = text.removesuffix(".").lower()
    is_name = text.isascii() and len(name) <= 253 and _NAME.fullmatch(name)
    return name if is_name and not _NUMERIC.fullmatch(name) else ""


def special_kind(address: Address) -> str:
    """Return why an address is not of the public network, as the end of a sentence; "" if it is.

    Forms of IPv6 that hold an address of IPv4 count as that one. Source: the registries of special
    addresses of IANA, as :mod:`ipaddress` has them, and RFC 4291, 3056, 4380 and 6052.
    """
    if isinstance(address, ipaddress.IPv6Address):
        held = address.ipv4_mapped or address.sixtofour
        if address in _TRANSLATED or int(address) >> 32 == 0:
            held = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if held is not None and int(address) > 1:
            return special_kind(held)
        if address not in _WITHIN and not address.is_loopback and not address.is_link_local:
            return "which is not a public address"
        if address.teredo is not None:
            return "which is of a tunnel"
    for word in ("loopback", "link_local", "multicast", "unspecified"):
        if getattr(address, f"is_{word}"):
            return f"which is {word.replace('_', '-')}"
    is_public = address.is_global and address not in _OF_CLOUDS
    return "" if is_public else "which is private"


def _wrong(entry: object) -> SpecError:
    allowed = "a name such as pypi.org or *.example.org, or an address, each with an optional :port"
    return SpecError("Egress.allow", entry, allowed)


@lru_cache(256)
def _rules_of(allow: tuple[str, ...]) -> tuple[_Rule, ...]:
    return tuple(map(_read, allow))


def _read(entry: str) -> _Rule:
    wrong = _wrong(entry)
    found = _ENTRY.fullmatch(entry)
    if found is None:
        raise wrong
    port = found["port"]
    ports = _PORTS if port is None else (int(port),)
    if not 0 < ports[0] <= _MAX_PORT:
        raise wrong
    text = found["v6"] + (found["bits"] or "") if found["v6"] else found["rest"]
    if found["v6"] or _NUMERIC.fullmatch(text.partition("/")[0]):
        try:
            return _Rule("", False, ipaddress.ip_network(text), ports)
        except ValueError:
            raise wrong from None
    if text == "*":
        return _Rule("", True, None, ports)
    below = text.startswith("*.")
    try:
        plain = text.removeprefix("*.").lower()
        name = host_name(plain.encode("idna").decode())
        # IDNA 2003 makes another name of some letters, such as ß
        name = name if plain.isascii() or name.encode().decode("idna") == plain else ""
    except UnicodeError:
        name = ""
    if not name:
        raise wrong
    if name == "localhost":
        allowed = (
            "the name of another server: inside, localhost is the container; give a server of this "
            "machine a name, as in hosts={'index.test': '127.0.0.1'}"
        )
        raise SpecError("Egress.allow", entry, allowed)
    return _Rule(name, below, None, ports)
