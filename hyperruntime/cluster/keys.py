"""The keys of one head: its certificate, the only one that its nodes trust, and a token for each
node.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import attrs

from hyperruntime.errors import ClusterError
from hyperruntime.host.process import run_process

_OPENSSL = (
    *(
        "openssl",
        "req",
        "-x509",
        "-nodes",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
    ),
    *("-subj", "/CN=hyperruntime head", "-days", "400"),
)
_TIMEOUT_S = 30.0


@attrs.frozen
class Keys:
    """A certificate and its key, in files that only this user can read.

    Attributes:
        certificate: path of the certificate, PEM.
        key: path of its private key, PEM.
    """

    certificate: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        """Return the TLS settings of the head."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        return context


def make_keys(directory: Path) -> Keys:
    """Make a certificate and its key in an existing directory, with ``openssl``.

    Raises:
        ClusterError: openssl is missing, or fails.
    """
    keys = Keys(directory / "head.crt", directory / "head.key")
    args = [*_OPENSSL, "-keyout", str(keys.key), "-out", str(keys.certificate)]
    try:
        os.close(os.open(keys.key, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        result = run_process(args, timeout_s=_TIMEOUT_S)
    except FileNotFoundError as error:
        raise ClusterError(f"no keys can be made: {error}; install openssl") from error
    except (OSError, TimeoutError) as error:
        raise ClusterError(f"no keys can be made in {directory}: {error}") from error
    if result.exit_code != 0:
        raise ClusterError(f"no keys can be made: openssl failed: {result.error_text}")
    return keys


def client_context(certificate: str) -> ssl.SSLContext:
    """Return the TLS settings of a node: it trusts only this certificate, under any address.

    Args:
        certificate: PEM.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # the head has a certificate, not a name: nodes get it with their token
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context
