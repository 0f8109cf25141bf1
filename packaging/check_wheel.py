#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What must be true of every wheel, as far as its files tell. Fails with a list of what is not.

Usage: check_wheel.py WHEEL...
"""

import re
import struct
import sys
import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAX_BYTES = 20_000_000
NEWEST_GLIBC = 34  # the minor version that a wheel may need

# What every Linux with glibc has, and Arrow, which comes with the environment's pyarrow.
SYSTEM = re.compile(r"(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux-[\w-]+)\.so\.\d+$")
ARROW = re.compile(r"lib(arrow|parquet)\.so\.(\d+)$")


def needed(elf: bytes) -> tuple[list[str], list[str]]:
    """DT_NEEDED, and DT_RPATH with DT_RUNPATH, of a 64-bit little-endian ELF file."""
    (offset,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    headers = [struct.unpack_from("<IIQQQQQQ", elf, offset + i * size) for i in range(count)]
    loads = [(h[3], h[2], h[5]) for h in headers if h[0] == 1]

    def place(address: int) -> int:
        (found,) = [file + address - at for at, file, length in loads if at <= address < at + length]
        return found

    entries = []
    for header in (h for h in headers if h[0] == 2):
        entries += [struct.unpack_from("<QQ", elf, header[2] + i) for i in range(0, header[5], 16)]
    strings = next((place(value) for tag, value in entries if tag == 5), 0)

    def text(at: int) -> str:
        return elf[strings + at : elf.index(b"\0", strings + at)].decode()

    return [text(v) for tag, v in entries if tag == 1], [text(v) for tag, v in entries if tag in (15, 29)]


def wrong_libraries(name: str, content: bytes) -> list[str]:
    libraries, paths = needed(content)
    found = [f"{name} has the search path {path}" for path in paths if not path.startswith("$ORIGIN")]
    for library in libraries:
        arrow = ARROW.match(library)
        if arrow and f"libmillrace_parquet_{arrow[2]}.so" in name:
            continue
        if not SYSTEM.match(library):
            found.append(f"{name} needs {library}, which machines may lack")
    return found


def wrong_names(wheel: Path, names: list[str]) -> list[str]:
    found = []
    tag = "-".join(wheel.name.split("-")[2:4])
    module = {"cp311-cp311": r"millrace/_core\.cpython-311-.*\.so", "cp312-abi3": r"millrace/_core\.abi3\.so"}.get(tag)
    if module is None:
        found.append(f"the tag {tag} is none of cp311-cp311 and cp312-abi3")
    elif not any(re.fullmatch(module, name) for name in names):
        found.append(f"no file {module}: the tag {tag} promises it")
    glibc = re.search(r"-manylinux_2_(\d+)_", wheel.name)
    if glibc is None:
        found.append("it was not repaired for other machines: its name holds no manylinux tag")
    elif int(glibc[1]) > NEWEST_GLIBC:
        found.append(f"it needs glibc 2.{glibc[1]}, and RHEL 9 and Amazon Linux 2023 have 2.{NEWEST_GLIBC}")
    wanted = {"millrace", "nanobind", *tomllib.loads((HERE / "libraries.toml").read_text())}
    texts = {"millrace" if n.endswith("licenses/LICENSE") else Path(n).parent.name for n in names if "/licenses/" in n}
    found += [f"no licence text of {name}" for name in sorted(wanted - texts)]
    return found


def adapters(names: list[str]) -> list[str]:
    """Of Arrow, by soname."""
    return sorted(m[1] for name in names if (m := re.search(r"libmillrace_parquet_(\d+)\.so$", name)))


def problems(wheel: Path, places: list[str]) -> list[str]:
    """`places`: paths of the building machine that no file may hold."""
    found = []
    if wheel.stat().st_size >= MAX_BYTES:
        found.append(f"{wheel.stat().st_size} bytes are more than {MAX_BYTES}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        found += wrong_names(wheel, names)
        programs = [name for name in names if name.endswith(".data/scripts/millrace")]
        if len(programs) != 1 or not archive.read(programs[0]).startswith(b"\x7fELF"):
            found.append("the command millrace is not the native program itself")
        for name in names:
            content = archive.read(name)
            found += [f"{name} holds the path {place}" for place in places if place.encode() in content]
            if content.startswith(b"\x7fELF"):
                found += wrong_libraries(name, content)
        if not adapters(names):
            found.append("it reads Parquet with no pyarrow: no libmillrace_parquet_*.so")
    return found


def check(wheel: Path, places: list[str]) -> None:
    if found := problems(wheel, places):
        sys.exit("\n".join([f"{wheel.name}:", *(f"  {problem}" for problem in found)]))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        check(Path(argument), [str(HERE.parent)])
