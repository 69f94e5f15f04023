"""Let 64-bit ELF files linked against a newer glibc load on Debian 12 (glibc 2.36).

Given: paths. Each is rewritten in place. glibc 2.38 renamed `strtol` and kin to `__isoc23_strtol` for code compiled as
C23; the old names still exist and differ only in accepting no `0b` prefix. So each undefined symbol `__isoc23_NAME` is
pointed at `NAME`, and the requirement on version GLIBC_2.38 becomes one on the base version, GLIBC_2.2.5.
Exit status 1 when a file needs any other version newer than 2.36: that cannot be mended so.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

NEWER = "GLIBC_2.38"
BASE = "GLIBC_2.2.5"
NEWEST_HERE = 36
PREFIX = "__isoc23_"

PT_LOAD, PT_DYNAMIC = 1, 2
DT_STRTAB, DT_SYMTAB, DT_VERNEED, DT_VERNEEDNUM = 5, 6, 0x6FFFFFFE, 0x6FFFFFFF
SYMBOL_SIZE = 24


def elf_hash(name: str) -> int:
    """The System V hash by which the loader compares version names."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value


class Elf:
    """The dynamic section of one file, mapped from addresses to file offsets."""

    def __init__(self, data: bytearray) -> None:
        if data[:5] != b"\x7fELF\x02":
            raise ValueError("not a 64-bit ELF file")
        self.data = data
        table = self.unpack("<Q", 32)[0]
        size, count = self.unpack("<HH", 54)
        self.segments = [self.unpack("<IIQQQQQQ", table + i * size) for i in range(count)]
        self.dynamic: dict[int, int] = {}
        at = next(segment[2] for segment in self.segments if segment[0] == PT_DYNAMIC)
        while True:
            tag, value = self.unpack("<QQ", at)
            if not tag:
                break
            self.dynamic.setdefault(tag, value)
            at += 16
        self.strings = self.offset(self.dynamic[DT_STRTAB])

    def unpack(self, form: str, at: int) -> tuple[int, ...]:
        return struct.unpack_from(form, self.data, at)

    def offset(self, address: int) -> int:
        for kind, _, offset, start, _, size, *_ in self.segments:
            if kind == PT_LOAD and start <= address < start + size:
                return address - start + offset
        raise ValueError(f"address {address:#x} is in no loaded segment")

    def name(self, at: int) -> str:
        start = self.strings + at
        return self.data[start : self.data.index(0, start)].decode()

    def rename_symbols(self) -> list[str]:
        """Cut the prefix off by moving each name's offset past it."""
        renamed = []
        # .dynsym has no length of its own; linkers place .dynstr right behind it.
        for at in range(self.offset(self.dynamic[DT_SYMTAB]), self.strings, SYMBOL_SIZE):
            (name_at,) = self.unpack("<I", at)
            if self.name(name_at).startswith(PREFIX):
                renamed.append(self.name(name_at))
                struct.pack_into("<I", self.data, at, name_at + len(PREFIX))
        return renamed

    def needed_versions(self) -> list[tuple[int, int, str]]:
        """(offset of the entry, string offset of its name, name), over all libraries."""
        found = []
        at = self.offset(self.dynamic[DT_VERNEED])
        for _ in range(self.dynamic[DT_VERNEEDNUM]):
            _, count, _, first, following = self.unpack("<HHIII", at)
            entry = at + first
            for _ in range(count):
                name_at, step = self.unpack("<II", entry + 8)
                found.append((entry, name_at, self.name(name_at)))
                entry += step
            at += following
        return found


def retarget(path: Path) -> set[str]:
    """Rewrite one file; return the versions it still needs and that this machine lacks."""
    data = bytearray(path.read_bytes())
    elf = Elf(data)
    renamed = elf.rename_symbols()
    needed = elf.needed_versions()
    base = next(name_at for _, name_at, name in needed if name == BASE)
    for entry, _, name in needed:
        if name == NEWER:
            struct.pack_into("<I", data, entry, elf_hash(BASE))
            struct.pack_into("<I", data, entry + 8, base)
    unsolved = {
        name
        for _, _, name in needed
        if name.startswith("GLIBC_2.") and name != NEWER and int(name.split(".")[1]) > NEWEST_HERE
    }
    path.write_bytes(data)
    print(path, "renamed", renamed, "unsolved", sorted(unsolved))
    return unsolved


if __name__ == "__main__":
    sys.exit(any([retarget(Path(argument)) for argument in sys.argv[1:]]))
