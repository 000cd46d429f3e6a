"""How this machine reaches the network: its proxies, its certificates and the settings of its pip.

Builds get the proxies. The container that builds missing wheels also gets the rest, as files that
are mounted: nothing of it is in an image, in its history or in the arguments of a build.

Source: pip's documentation, "Configuration"; requests' documentation, "SSL Cert Verification" and
"Proxies".
"""

from __future__ import annotations

import ast
import netrc
import re
import ssl
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from hyperruntime.host.engine_limits import limit_s
from hyperruntime.host.process import run_process

# Every builder accepts these without a declaration, and keeps none of them in the image.
PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_CERTIFICATE_VARIABLES = (
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "SSL_CERT_FILE",
    "GIT_SSL_CAINFO",
)
# The bundles of Debian, Fedora, SUSE and Alpine.
_SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_LOGIN = re.compile(r"(?<=//)[^/\s'\"]+@")
# The sections of pip's settings that count for what is downloaded; later ones win.
_SECTIONS = ("global", "download", "wheel", ":env:")
_SETTING = re.compile(r"(?P<section>:env:|[\w-]+)\.(?P<name>[\w-]+)=(?P<value>['\"].*)")
_COPIED = (
    "trusted-host",
    "no-index",
    "timeout",
    "default-timeout",
    "retries",
    "pre",
    "prefer-binary",
    "proxy",
)
# A promise to the user, who waits for it: an address that says nothing for so long counts as
# unreachable.
_REACH_S = 20.0
INSIDE = "/hyperruntime-pip"


def proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the proxy variables, each in both spellings, because apt and curl read only
    ``http_proxy``.
    """
    found = {
        name: environ.get(name) or environ.get(name.swapcase(), "") for name in PROXY_VARIABLES
    }
    return {name: value for name, value in found.items() if value}


def certificates(environ: Mapping[str, str], *files: str) -> str:
    """Return the certificates that programs of this machine trust, as one PEM text.

    Args:
        environ: the environment, whose variables name further files or directories.
        *files: more files.
    """
    named = [*files, *(environ.get(name, "") for name in _CERTIFICATE_VARIABLES)]
    places = [*named, *environ.get("SSL_CERT_DIR", "").split(":"), *_SYSTEM_BUNDLES]
    found: dict[str, None] = {}
    for place in dict.fromkeys(filter(None, places)):
        for path in _files(Path(place)):
            try:
                found |= dict.fromkeys(_CERTIFICATE.findall(path.read_text(errors="replace")))
            except OSError:
                continue
    return "".join(f"{text}\n" for text in found)


def without_login(text: str) -> str:
    """Return a text without the names and passwords in its URLs, for messages and logs."""
    return _LOGIN.sub("***@", text)


def pip_settings(pip: Sequence[str]) -> dict[str, str]:
    """Return the settings of a pip, from its files and the environment, by name; empty if it cannot
    be asked.

    Args:
        pip: argv of pip.
    """
    try:
        result = run_process([*pip, "config", "list"], timeout_s=limit_s("", "program"))
    except TimeoutError:
        return {}
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in result.stdout.decode(errors="replace").splitlines():
        match = _SETTING.fullmatch(line)
        if match is not None and match["section"] in found:
            found[match["section"]][match["name"]] = str(ast.literal_eval(match["value"]))
    return {name: value for section in _SECTIONS for name, value in found[section].items()}


def unreachable(source: str, settings: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Return why this machine cannot reach a ``git+https://`` or ``https://`` address, or "";
    downloads nothing.

    Args:
        source: the address, as in a requirements file.
        settings: the settings of :func:`pip_settings`.
        environ: this machine's environment, for the certificates.
    """
    parts = urlsplit(source.removeprefix("git+"))
    login, _, host = parts.netloc.rpartition("@")
    where = f"{parts.path}?{parts.query}"
    if source.startswith("git+"):
        where = parts.path.rsplit("@", 1)[0] + "/info/refs?service=git-upload-pack"
    url = f"{parts.scheme}://{host}{where}"
    headers = (
        {"Authorization": f"Basic {b64encode(unquote(login).encode()).decode()}"} if login else {}
    )
    try:
        context = ssl.create_default_context(
            cadata=certificates(environ, settings.get("cert", "")) or None
        )
        proxy = settings.get("proxy", "")
        through = ProxyHandler({"http": proxy, "https": proxy} if proxy else None)
        opener = build_opener(through, HTTPSHandler(context=context))
        request = Request(url)  # noqa: S310 - http or https
        for name, value in headers.items():
            request.add_unredirected_header(name, value)  # another host does not get the login
        with opener.open(request, timeout=_REACH_S):
            return ""
    except HTTPError as error:
        return f"{host} answered {error.code} {error.reason}"
    except (OSError, ValueError, HTTPException) as error:
        return f"{host} cannot be reached ({getattr(error, 'reason', None) or error})"


def write_settings(
    folder: Path, settings: Mapping[str, str], environ: Mapping[str, str]
) -> dict[str, str]:
    """Write the files that give pip and git of a container this machine's network; return the
    variables for them.

    The passwords are in files, and not in variables: ``${NAME}`` in a requirements file could send
    a variable anywhere.

    Args:
        folder: an empty directory that is mounted at :data:`INSIDE` of the container.
        settings: the settings of :func:`pip_settings`.
        environ: this machine's environment.
    """
    bundle = folder / "certificates.pem"
    inside = f"{INSIDE}/certificates.pem"
    bundle.write_text(certificates(environ, settings.get("cert", "")))
    lines = {name: settings[name] for name in _COPIED if name in settings} | _indexes(settings)
    lines |= {"cert": inside, "find-links": f"{INSIDE}/wheels"}
    if (client := settings.get("client-cert", "")) and Path(client).is_file():
        (folder / "client.pem").write_bytes(Path(client).read_bytes())
        lines["client-cert"] = f"{INSIDE}/client.pem"
    if constraints := [
        Path(name) for name in settings.get("constraint", "").split() if Path(name).is_file()
    ]:
        (folder / "constraints.txt").write_text("\n".join(path.read_text() for path in constraints))
        lines["constraint"] = f"{INSIDE}/constraints.txt"
    rows = [f"{name} = {' '.join(value.split())}" for name, value in lines.items()]
    (folder / "pip.conf").write_text("\n".join(["[global]", *rows, ""]))
    _write_netrc(folder / "netrc", _indexes(settings).values(), environ)
    named = dict.fromkeys(
        ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"), inside
    )
    files = {"PIP_CONFIG_FILE": f"{INSIDE}/pip.conf", "NETRC": f"{INSIDE}/netrc"}
    return {**proxies(environ), **named, **files, "GIT_TERMINAL_PROMPT": "0"}


def _files(place: Path) -> Iterator[Path]:
    if place.is_dir():
        yield from sorted(path for path in place.iterdir() if path.is_file())
    elif place.is_file():
        yield place


def _indexes(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the indexes that a container reaches; never pip's own index in place
    of one of files.
    """
    main = settings.get("index-url", "")
    more = settings.get("extra-index-url", "").split()
    remote = [url for url in more if not url.startswith("file:")]
    if main.startswith("file:"):
        if not remote:
            return {"no-index": "true"}
        main, remote = remote[0], remote[1:]
    return {
        name: value
        for name, value in (("index-url", main), ("extra-index-url", " ".join(remote)))
        if value
    }


def _write_netrc(target: Path, urls: Iterable[str], environ: Mapping[str, str]) -> None:
    """Write the logins of the user's ``.netrc`` for the hosts of the indexes, and of no others."""
    source = Path(environ.get("NETRC") or Path(environ.get("HOME", "/")) / ".netrc")
    try:
        known = netrc.netrc(str(source)).hosts
    except (OSError, netrc.NetrcParseError):
        known = {}
    hosts = sorted(
        {urlsplit(url).hostname or "" for text in urls for url in text.split()} & known.keys()
    )
    rows = [f"machine {host} login {known[host][0]} password {known[host][2]}" for host in hosts]
    target.write_text("\n".join([*rows, ""]))
