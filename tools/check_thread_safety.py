# SPDX-License-Identifier: Apache-2.0
"""Runs clang's check of lock annotations (GUARDED_BY and others of base/thread/sync.h), which g++ ignores.

    check_thread_safety.py BUILD CLANG

BUILD has a compile_commands.json for g++; CLANG parses each of its product files and writes no output.
"""

import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

# Options of g++ for output files, each with a value.
OUTPUT = {"-o", "-MF", "-MT"}


def clang_command(command: str, clang: str) -> list[str]:
    words = shlex.split(command)
    words = words[next(i for i, word in enumerate(words) if word.endswith("++")) + 1 :]
    kept: list[str] = []
    skip = False
    for word in words:
        if skip or word in OUTPUT:
            skip = not skip
        elif word not in ("-c", "-MD"):
            kept.append(word)
    return [clang, "-fsyntax-only", *kept, "-Wno-everything", "-Wthread-safety", "-Werror"]


def locks(file: str) -> bool:
    """Whether the room that a source file or a generated unity file belongs to takes a lock anywhere."""
    _, found, below = file.partition("/src/millrace/")
    room = pathlib.Path(__file__).parents[1] / "src/millrace" / below.split("/")[0]
    return bool(found) and any("MutexLock" in path.read_text() for path in room.rglob("*.[ch]*"))


def main() -> int:
    build, clang = pathlib.Path(sys.argv[1]), sys.argv[2]
    entries = json.loads((build / "compile_commands.json").read_text())
    # Only rooms that have a lock. Tests have no annotations, and nanobind's sources are not ours.
    chosen = [e for e in entries if "_test" not in e["output"] and "nanobind" not in e["output"] and locks(e["file"])]

    def run(entry: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            clang_command(entry["command"], clang), cwd=entry["directory"], stderr=subprocess.PIPE, text=True
        )

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        failed = [done.stderr for done in pool.map(run, chosen) if done.returncode != 0]
    print(*failed, sep="\n", file=sys.stderr, end="")
    if not chosen:
        print(f"{build}: no files of src/millrace to check", file=sys.stderr)
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
