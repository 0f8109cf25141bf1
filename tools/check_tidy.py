# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy with the checks of .clang-tidy over the product's files, room by room.

    check_tidy.py BUILD CLANG_TIDY [ROOM...]

BUILD has a compile_commands.json of unity builds: a file of several sources is checked at once, headers of the rooms
with them. Without ROOM, all rooms are checked.
"""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

from check_aarch64 import compile_flags


def room_of(file: str) -> str:
    """The room that a source file or a generated unity file belongs to; "" for other files."""
    _, found, below = file.partition("/src/millrace/")
    return below.split("/")[0] if found else ""


def main() -> int:
    build, tidy, rooms = pathlib.Path(sys.argv[1]), sys.argv[2], set(sys.argv[3:])
    entries = json.loads((build / "compile_commands.json").read_text())
    chosen = [
        e
        for e in entries
        if room_of(e["file"]) and "_test" not in e["output"] and "nanobind" not in e["output"]
        if not rooms or room_of(e["file"]) in rooms
    ]

    def run(entry: dict[str, str]) -> subprocess.CompletedProcess[str]:
        words = compile_flags(entry["command"])
        flags = [word for word in words if word != entry["file"] and not word.startswith("-W")]
        command = [tidy, "--quiet", entry["file"], "--", *flags, "-Wno-everything"]
        return subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True)

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        failed = [done.stdout + done.stderr for done in pool.map(run, chosen) if done.returncode != 0]
    print(*failed, sep="\n", file=sys.stderr, end="")
    if not chosen:
        print(f"{build}: no files of src/millrace to check", file=sys.stderr)
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
