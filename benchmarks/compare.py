#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two builds by the same benchmark, or two files of results.

    benchmarks/compare.py OLD NEW --runs 5 -- benchmarks/main_job.py --json
    benchmarks/compare.py old.jsonl new.jsonl

OLD and NEW are built checkouts: the command runs in each by turns, so that a machine that slows down slows both, with
that checkout's Python. It prints JSON objects, a line each, or nothing that counts: then its wall and CPU time are
compared. Files hold such objects. A number is named by its path in the object, with the words beside it; numbers of
several runs, and lists of numbers, count by their median. A row is marked where the ranges of both sides do not meet.
"""

import argparse
import collections
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

Numbers = dict[str, list[float]]


def leaves(value: object, name: str = "") -> Iterator[tuple[str, float]]:
    """Each number of a JSON value with its name. Words of an object name the numbers beside them."""
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        yield name, float(value)
    elif isinstance(value, list):
        for entry in value:
            yield from leaves(entry, name)
    elif isinstance(value, dict):
        words = " ".join(str(word) for word in value.values() if isinstance(word, str))
        prefix = f"{name} {words}".strip()
        for key, entry in value.items():
            yield from leaves(entry, f"{prefix}.{key}" if prefix else key)


def add_lines(numbers: Numbers, text: str) -> bool:
    """Adds what the JSON objects of `text` hold, a line each. Returns whether there were any."""
    found = False
    for line in text.splitlines():
        if line.startswith("{"):
            found = True
            for name, number in leaves(json.loads(line)):
                numbers[name].append(number)
    return found


def run_once(checkout: pathlib.Path, command: list[str], numbers: Numbers) -> None:
    python = checkout / ".venv" / "bin" / "python"
    if not python.exists():
        sys.exit(f"{checkout}: no .venv; run ./dev build in it first")
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    line = [str(python), *command] if command[0].endswith(".py") else command
    ran = subprocess.run(line, cwd=checkout, stdout=subprocess.PIPE, text=True)
    wall, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ran.returncode:
        sys.exit(f"{checkout}: the command ended with {ran.returncode}")
    if not add_lines(numbers, ran.stdout):
        numbers["wall_s"].append(wall)
        numbers["cpu_s"].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def table(old: Numbers, new: Numbers) -> Iterator[str]:
    names = [name for name in old if name in new]
    if not names:
        sys.exit("the two sides have no number in common")
    width = max(len(name) for name in names)
    yield f"{'':{width}}  {'old':>12} {'new':>12} {'new/old':>8}"
    for name in names:
        one, two = statistics.median(old[name]), statistics.median(new[name])
        apart = max(old[name]) < min(new[name]) or max(new[name]) < min(old[name])
        mark = " *" if apart and len(old[name]) > 1 and len(new[name]) > 1 else ""
        ratio = f"{two / one:8.3f}" if one else f"{'-':>8}"
        yield f"{name:{width}}  {one:12.6g} {two:12.6g} {ratio}{mark}"
    yield "*: the ranges of both sides do not meet"
    for side, more in (("old", old.keys() - new.keys()), ("new", new.keys() - old.keys())):
        if more:
            yield f"only in {side}: {', '.join(sorted(more))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path, help="a built checkout, or a file of results")
    parser.add_argument("new", type=pathlib.Path, help="the same of the other side")
    parser.add_argument("--runs", type=int, default=5, help="runs a side (default 5)")
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    args, command = parser.parse_args(words[:split]), words[split + 1 :]
    sides: dict[pathlib.Path, Numbers] = {
        args.old: collections.defaultdict(list),
        args.new: collections.defaultdict(list),
    }
    if len(sides) == 1:
        parser.error("OLD and NEW are the same")
    if args.old.is_dir() != args.new.is_dir() or args.old.is_dir() != bool(command):
        parser.error("give two checkouts and a command behind --, or two files and none")
    for _ in range(args.runs if command else 1):
        for side, numbers in sides.items():
            if command:
                run_once(side.resolve(), command, numbers)
            elif not add_lines(numbers, side.read_text()):
                sys.exit(f"{side}: no JSON object on a line")
    print(*table(sides[args.old], sides[args.new]), sep="\n")


if __name__ == "__main__":
    main()
