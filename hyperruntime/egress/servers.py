"""Find the servers that a container may reach, and connect to them, or to the site's proxy."""

from __future__ import annotations

import asyncio
import base64
import errno
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

import attrs

from hyperruntime.errors import GatewayConfigError
from hyperruntime.host.process import overload
from hyperruntime.network.egress import Address, Egress, as_address, host_name, special_kind
from hyperruntime.ports.site_proxy import site_proxy

_CONNECT_S = 10.0
_MOST_HEAD = 16384


class RefusedError(Exception):
    """A connection that is not made, and the status of the answer; the text is a sentence's end."""

    def __init__(self, why: str, status: int = 403) -> None:
        """Say why."""
        super().__init__(why)
        self.status = status


@attrs.frozen
class Target:
    """A server as a client names it: a name or an address, and a port."""

    host: str
    port: int

    @property
    def address(self) -> Address | None:
        """The address, if the client named one."""
        return as_address(self.host)

    def __str__(self) -> str:
        """Return it as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def target_of(authority: str, port: int | None = None) -> Target:
    """Return the target of ``host:port``.

    Args:
        authority: as in a URL, without a login.
        port: the port if it names none; None means that it must.

    Raises:
        RefusedError: it is none, or writes an address in an odd way.
    """
    given: int | None = None
    text = ""
    with suppress(ValueError):
        parts = urlsplit(f"//{authority}")
        text = parts.hostname or ""
        is_plain = parts.netloc == authority and "@" not in authority
        given = (parts.port or port) if is_plain else None
    if given is None:
        raise RefusedError(f"{authority[:200]!r} is no host with a port", 400)
    address = as_address(text)
    host = host_name(text) if address is None else str(address)
    if not host:
        raise RefusedError(
            f"{text[:200]!r} is no name of a server, and no address in its usual form"
        )
    return Target(host, given)


def check(egress: Egress, target: Target, server: Server | None = None) -> None:
    """Check a target against the list, and the address that it led to.

    Raises:
        RefusedError: the list does not have it.
    """
    address = target.address
    if address is None:
        why = egress.refuses_name(target.host, target.port)
    else:
        why = egress.refuses_address(address, target.port)
    found = as_address(server.address) if server is not None else None
    if not why and found is not None and address is None:
        why = egress.refuses_answer(target.host, found, target.port, _kind(found))
    if why:
        raise RefusedError(why)


@attrs.define
class Server:
    """A connection to a server.

    Attributes:
        socket: it, non-blocking.
        address: where it leads.
        proxy: the site's proxy, which expects whole URLs; None if it leads to the server itself.
    """

    socket: socket.socket
    address: str
    proxy: SplitResult | None = None

    @property
    def login(self) -> str:
        """The value of ``Proxy-Authorization``, or ""."""
        return "" if self.proxy is None else _login(self.proxy)


class Servers:
    """Connects for one container; at most four names are resolved at once."""

    def __init__(self) -> None:
        """Prepare; threads start when they are needed."""
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="hyperruntime-names")

    def close(self) -> None:
        """Let the threads end; a lookup that hangs ends with its own limit."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def connect(self, egress: Egress, target: Target, *, tunnel: bool) -> Server:
        """Connect to a target of the list; the address that was checked is the one that is used.

        Args:
            egress: the list, which has the target.
            target: the server.
            tunnel: whether the site's proxy, if there is one, is asked for a tunnel; else for URLs.

        Raises:
            RefusedError: an address may not be reached, or no connection can be made.
        """
        limit_s = _CONNECT_S * overload()
        try:
            proxy = site_proxy(f"{'https' if tunnel else 'http'}://{target}")
            parts = urlsplit(proxy or "")
            here = Target(parts.hostname or "", parts.port or 80)
        except (GatewayConfigError, ValueError):  # its text may have a login
            raise RefusedError("this machine's proxy variables are wrong", 502) from None
        if target.address is not None or target.host in egress.hosts:
            proxy = None
        addresses = await self._addresses(egress, target, limit_s, may_fail=proxy is not None)
        if proxy is None:
            return await _first(addresses, target, limit_s)
        if parts.scheme != "http":
            raise RefusedError("the site's proxy is reached by TLS, which is not supported", 502)
        try:
            places = [str(one) for one in await self._resolve(here, limit_s)]
            server = await _first(places, here, limit_s)
        except RefusedError:
            raise RefusedError("the site's proxy cannot be reached", 502) from None
        if tunnel:
            try:
                async with asyncio.timeout(limit_s):
                    await _open_tunnel(server.socket, target, _login(parts))
            except (OSError, TimeoutError) as error:
                server.socket.close()
                raise RefusedError(f"the site's proxy does not answer: {error}", 502) from error
            except BaseException:
                server.socket.close()
                raise
        return Server(server.socket, "the site's proxy", None if tunnel else parts)

    async def _addresses(
        self, egress: Egress, target: Target, limit_s: float, *, may_fail: bool
    ) -> list[str]:
        if target.address is not None:
            return [str(target.address)]
        if target.host in egress.hosts:
            return [egress.hosts[target.host]]
        try:
            found = await self._resolve(target, limit_s)
        except RefusedError:
            if may_fail:  # behind a proxy, this machine may know no names
                return []
            raise
        whys = {
            address: egress.refuses_answer(target.host, address, target.port, _kind(address))
            for address in found
        }
        for why in whys.values():
            if why:  # also if others are public: such an answer is an attack, or a mistake
                raise RefusedError(why)
        return [str(address) for address in whys]

    async def _resolve(self, target: Target, limit_s: float) -> list[Address]:
        loop = asyncio.get_running_loop()
        look_up = loop.run_in_executor(
            self._threads,
            lambda: socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM),
        )
        try:
            async with asyncio.timeout(limit_s):
                answer = await look_up
        except TimeoutError:
            raise RefusedError(
                f"{target.host} was not resolved within {limit_s:g} s", 504
            ) from None
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise RefusedError(f"{target.host} cannot be resolved: {why}", 502) from error
        texts = dict.fromkeys(str(place[0]).partition("%")[0] for *_, place in answer)
        return [ipaddress.ip_address(text) for text in texts]


def _kind(address: Address) -> str:
    return special_kind(address) or ("which is this machine's" if _is_own(address) else "")


def _is_own(address: Address) -> bool:
    """Return whether an address is one of this machine, which can listen on these only."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        trial = socket.socket(family, socket.SOCK_DGRAM)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return False
        raise RefusedError("this machine has no descriptor left", 502) from error
    with trial:
        try:
            trial.bind((str(address), 0))
        except OSError:
            return False
    return True


async def _first(addresses: list[str], target: Target, limit_s: float) -> Server:
    loop = asyncio.get_running_loop()
    why = "it has no address"
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            made = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # no IPv6 here, or no descriptor left
            why = error.strerror or why
            continue
        try:
            made.setblocking(False)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            async with asyncio.timeout(limit_s):
                await loop.sock_connect(made, (address, target.port))
        except (OSError, TimeoutError) as error:
            made.close()
            why = getattr(error, "strerror", None) or f"no answer within {limit_s:g} s"
        except BaseException:
            made.close()
            raise
        else:
            return Server(made, address)
    raise RefusedError(f"{target} cannot be reached: {why}", 502)


def _login(proxy: SplitResult) -> str:
    if proxy.username is None:
        return ""
    from urllib.parse import unquote

    text = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return f"Basic {base64.b64encode(text.encode()).decode()}"


async def _open_tunnel(proxy: socket.socket, target: Target, login: str) -> None:
    loop = asyncio.get_running_loop()
    header = f"Proxy-Authorization: {login}\r\n" if login else ""
    ask = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{header}\r\n"
    await loop.sock_sendall(proxy, ask.encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):  # byte by byte: what follows is the server's
        piece = await loop.sock_recv(proxy, 1)
        head += piece
        if not piece or len(head) > _MOST_HEAD:
            raise RefusedError("the site's proxy closed the connection", 502)
    status = head.split(b"\r\n", 1)[0].decode("latin-1")
    if status.split(" ")[1:2] != ["200"]:
        raise RefusedError(f"the site's proxy refused it: {status[:100]}", 502)
