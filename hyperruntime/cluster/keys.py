"""The keys of one head: its certificate, the only one that its nodes trust, and a token for each
node.
"""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

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


def make_keys() -> tuple[str, ssl.SSLContext]:
    """Make a certificate and its key with ``openssl``; return the certificate as PEM, and the TLS
    settings of the head, which alone has the key.

    Raises:
        ClusterError: openssl is missing, or fails.
    """
    try:
        with tempfile.TemporaryDirectory() as place:  # 0700
            key = Path(place, "head.key")
            certificate = Path(place, "head.crt")
            args = [*_OPENSSL, "-keyout", str(key), "-out", str(certificate)]
            result = run_process(args, timeout_s=_TIMEOUT_S)
            if result.exit_code != 0:
                raise ClusterError(f"no keys can be made: openssl failed: {result.error_text}")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(certificate, key)
            return certificate.read_text(), context
    except FileNotFoundError as error:
        raise ClusterError(f"no keys can be made: {error}; install openssl") from error
    except (OSError, TimeoutError) as error:
        raise ClusterError(f"no keys can be made: {error}") from error


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
