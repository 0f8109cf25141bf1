# SPDX-License-Identifier: Apache-2.0
"""Compiles the core for aarch64 with a cross compiler, as far as that says whether the source is right for it.

    check_aarch64.py BUILD CXX

BUILD has a compile_commands.json for this machine; CXX (aarch64-linux-gnu-g++) parses each file of the core and writes
no output. Headers of libraries are those of this machine: their archives for aarch64 are needed to link only. What
needs Python, Arrow, FFmpeg or the codecs of pictures is left out, and so are tests and benchmarks.
"""

import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

# Options for output files, each with a value.
OUTPUT = {"-o", "-MF", "-MT"}
NOT_THE_CORE = ("_test", "fake_nvml", "nanobind", "millrace_parquet", "millrace_ffmpeg", "millrace_codecs", "/python/")


def compile_flags(command: str) -> list[str]:
    """The words of a compile command of g++, without its output files."""
    words = shlex.split(command)
    words = words[next(i for i, word in enumerate(words) if word.endswith("++")) + 1 :]
    kept: list[str] = []
    skip = False
    for word in words:
        if skip or word in OUTPUT:
            skip = not skip
        elif word not in ("-c", "-MD"):
            kept.append(word)
    return kept


def cross_command(command: str, compiler: str) -> list[str]:
    # Behind the cross compiler's own headers, for those that libraries keep by machine (OpenSSL's configuration).
    here = subprocess.run(["gcc", "-print-multiarch"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    return [compiler, "-fsyntax-only", *compile_flags(command), "-idirafter", f"/usr/include/{here}"]


def is_core(entry: dict[str, str]) -> bool:
    place = entry["output"]
    return "/src/millrace/" in f"/{place}" and not any(part in place for part in NOT_THE_CORE)


def main() -> int:
    build, compiler = pathlib.Path(sys.argv[1]), sys.argv[2]
    entries = json.loads((build / "compile_commands.json").read_text())
    chosen = [entry for entry in entries if is_core(entry)]

    def run(entry: dict[str, str]) -> subprocess.CompletedProcess[str]:
        command = cross_command(entry["command"], compiler)
        return subprocess.run(command, cwd=entry["directory"], stderr=subprocess.PIPE, text=True)

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        failed = [done.stderr for done in pool.map(run, chosen) if done.returncode != 0]
    print(*failed, sep="\n", file=sys.stderr, end="")
    if not chosen:
        print(f"{build}: no files of src/millrace to check", file=sys.stderr)
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
