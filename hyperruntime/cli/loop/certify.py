"""``hyperrun certify``: check the certificate of a record, from its file alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hyperruntime import registry
from hyperruntime.cli.command import Command, example
from hyperruntime.cli.tables import json_option, print_json, printable
from hyperruntime.domain import CertifiedDomain
from hyperruntime.errors import SpecError
from hyperruntime.json_values import parse_json
from hyperruntime.units import MIB

_MOST_BYTES = 16 * MIB


@click.command(cls=Command, epilog=example("hyperrun certify certificate_golomb-30.json"))
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def certify(file: Path, as_json: bool) -> int:
    """Check the certificate in FILE: verify its answer again, and print the exact value and whether
    it is a new record.

    Exit code 1: the answer is invalid, or its value is not the stated one.
    """
    certificate = _read(file)
    score = _domain(certificate.get("domain")).certify(certificate)
    if as_json:
        print_json(
            {
                "problem": score.task_id,
                "valid": score.valid,
                "score": score.value,
                "detail": score.detail,
                **score.facts,
            }
        )
    else:
        click.echo(
            printable(f"{score.task_id}: {'' if score.valid else 'refused: '}{score.detail}")
        )
        if score.valid:
            click.echo(f"exact value: {score.facts['value']}")
    return 0 if score.valid else 1


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        allowed = f"a file that can be read ({error.strerror})"
        raise SpecError("file", str(file), allowed) from error
    if len(data) > _MOST_BYTES:
        raise SpecError("file", str(file), f"a certificate has at most {_MOST_BYTES} bytes")
    try:
        value = parse_json(data)
    except ValueError:
        value = None
    if type(value) is not dict:
        raise SpecError("file", str(file), "a certificate is a JSON object")
    return value


def _domain(name: object) -> CertifiedDomain:
    """Return the domain that made a certificate; never one with an argument."""
    if type(name) is not str or ":" in name:
        raise SpecError("domain", name, "a certificate names the domain that made it")
    domain = registry.load_domain(name)
    if not isinstance(domain, CertifiedDomain):
        raise SpecError("domain", name, "it makes no certificates")
    return domain
