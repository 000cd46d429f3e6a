"""The HTTP proxy of a site, by the variables of the environment."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from hyperruntime.errors import GatewayConfigError


def site_proxy(url: str) -> str | None:
    """Return the proxy for an address, or None: ``http_proxy``, ``https_proxy`` and ``no_proxy``,
    or these names in capitals.

    This machine's own addresses (``localhost``, ``127.0.0.1``) are never asked through a proxy,
    which would ask another machine. ``no_proxy`` may hold networks, such as ``10.0.0.0/8``.

    Raises:
        GatewayConfigError: the variable names no HTTP proxy.
    """
    parts = urlsplit(url)
    known = getproxies_environment()
    proxy = known.get(parts.scheme, "")
    host = parts.hostname or ""
    if not proxy or _is_own(host) or _is_excepted(host, parts.port, known.get("no", "")):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme not in ("http", "https"):
        raise GatewayConfigError(
            f"{parts.scheme}_proxy names a proxy of another kind than HTTP; name an HTTP proxy, or "
            f"{host} in no_proxy"
        )
    return proxy


def _is_own(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_excepted(host: str, port: int | None, excepted: str) -> bool:
    """Return whether ``no_proxy`` names a host: by name, by a name that it ends in, or by its
    network; with its port, or without.
    """
    for word in (word.strip().lower() for word in excepted.split(",")):
        name, _, only_port = word.rpartition(":") if word.count(":") == 1 else (word, "", "")
        if only_port and only_port != str(port):
            continue
        end = name.removeprefix("*").lstrip(".")
        if name == "*" or (end and (host == end or host.endswith(f".{end}"))):
            return True
        try:
            if ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False):
                return True
        except ValueError:
            continue
    return False
