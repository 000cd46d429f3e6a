"""Seats that open or close while their gateway closes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from hyperruntime.errors import GatewayError
from hyperruntime.gateway import Gateway, GatewayConfig, ModelRule, Upstream

_ROUNDS, _SEATS = 20, 8


def _sockets_of_seats() -> set[str]:
    """Return the inodes of this process's sockets that are bound to the socket of a seat."""
    seats = {
        line.split()[6]
        for line in Path("/proc/net/unix").read_text().splitlines()
        if "/gateway.sock" in line
    }
    names = set()
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            names.add(os.readlink(fd).removeprefix("socket:[").removesuffix("]"))
    return seats & names


def test_a_gateway_leaves_no_socket_if_seats_open_and_close_while_it_closes(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-0123456789")
    config = GatewayConfig(
        upstreams=(Upstream(name="u", url="http://127.0.0.1:9", key_file=str(tmp_path / "key")),),
        models=(ModelRule(name="m", upstream="u"),),
    )

    def open_one(gateway: Gateway, folder: Path) -> None:
        folder.mkdir()
        with suppress(GatewayError):  # it was closed first
            gateway.seat("late", str(folder))

    before = _sockets_of_seats()
    with ThreadPoolExecutor(2 * _SEATS) as others:
        for number in range(_ROUNDS):
            gateway, work = Gateway(config), []
            for place in range(_SEATS):
                (folder := tmp_path / f"{number}-{place}").mkdir()
                seat = gateway.seat("early", str(folder))
                work += [
                    others.submit(seat.close),
                    others.submit(open_one, gateway, folder / "late"),
                ]
            gateway.close()
            for done in work:
                done.result(120)
    assert _sockets_of_seats() <= before
    assert list(tmp_path.rglob("gateway.sock")) == []
