"""Read the soname of a shared library. Sources: elf(5); System V ABI, dynamic section.

``ldconfig`` makes a link of this name beside each library; without ``ldconfig`` the driver makes these links.
"""

from __future__ import annotations

import mmap
import os
import struct

_LOAD, _DYNAMIC = 1, 2
_STRTAB, _SONAME = 5, 14
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
_ELF64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"


def read_soname(path: str | os.PathLike[str]) -> str | None:
    """Return the DT_SONAME of a 64-bit little-endian library; None without one, or if the file cannot be parsed."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _soname(data)
    except (OSError, ValueError, OverflowError, struct.error):  # the file is not a library
        return None


def _soname(data: mmap.mmap) -> str | None:
    if data[:6] != _ELF64_LITTLE_ENDIAN:
        return None
    *_, table, _, _, _, size, count, _, _, _ = _HEADER.unpack_from(data)
    segments = [_SEGMENT.unpack_from(data, table + number * size) for number in range(count)]
    dynamic = next((segment for segment in segments if segment[0] == _DYNAMIC), None)
    if dynamic is None:
        return None
    entries = dict(_ENTRY.iter_unpack(data[dynamic[2] : dynamic[2] + dynamic[5] // _ENTRY.size * _ENTRY.size]))
    if _SONAME not in entries or _STRTAB not in entries:
        return None
    for kind, _, offset, address, _, length, *_ in segments:
        if kind == _LOAD and address <= entries[_STRTAB] < address + length:
            start = offset + entries[_STRTAB] - address + entries[_SONAME]
            name = data[start : data.find(b"\0", start)].decode()
            return name if name and "/" not in name else None
    return None
