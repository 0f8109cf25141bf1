# SPDX-License-Identifier: Apache-2.0
"""Checks the #includes of src/millrace against the levels of the
house: a folder includes only lower levels, never a peer. Helpers of tests stay out of the product.

Headers in a folder's detail/, and in S3's client/ and object/, are private to it, and some third-party headers stay in
one folder each, or in two.
"""

import pathlib
import re
import sys

LEVELS = {
    "base": 0,
    "http": 1, "formats": 1, "tokenizer": 1, "order": 1, "plan": 1, "lint": 1, "shell": 1, "images": 1,
    "aws": 2, "slurm": 2, "chat": 2,
    "storage": 3,
    "sync": 4, "cache": 4, "video": 4, "prepare": 4, "layout": 4,
    "lerobot": 5, "episodes": 5, "link": 5, "loader": 5, "checkpoint": 5, "pcluster": 5,
    "jobs": 6, "monitor": 6, "bench": 6,
    "doctor": 7,
    "cli": 8, "python": 8,
}  # fmt: skip
ONLY_IN = {
    "CLI": "cli",
    "nanobind": "python",
    "xxhash.h": "base",
    "xxh_x86dispatch.h": "base",
    "curl": "http",
    "pugixml.hpp": "aws storage",
    "yaml.h": "formats",
    "arrow": "formats",
    "libavcodec": "video",
    "libavformat": "video",
    "libavutil": "video",
    "libswscale": "video",
    "jpeglib.h": "images",
    "png.h": "images",
    "webp": "images",
}
PRIVATE = {"detail", "client", "object"}
TESTS = re.compile(r"(^|/)testing/|_test\.cpp$|(^|/|_)testing\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def problems(root: pathlib.Path):
    for path in sorted([*root.rglob("*.h"), *root.rglob("*.cpp")]):
        here = path.relative_to(root).parts[0]
        if here not in LEVELS:
            yield f"{path}: the folder {here} has no level; give it one in tools/check_layers.py and docs/design/index.md"
            continue
        for name in INCLUDE.findall(path.read_text()):
            parts = name.split("/")
            if parts[0] == "millrace":
                there = parts[1]
                if there != here and LEVELS.get(there, 99) >= LEVELS[here]:
                    yield f"{path}: {here} (level {LEVELS[here]}) includes {name} (level {LEVELS.get(there)})"
                if PRIVATE & set(parts) and there != here:
                    yield f"{path}: {name} is private to {there}"
                if TESTS.search(name) and not TESTS.search(path.as_posix()):
                    yield f"{path}: {name} is for tests"
            elif here not in ONLY_IN.get(parts[0], here).split():
                yield f"{path}: <{name}> belongs in {ONLY_IN[parts[0]].replace(' ', ' and ')} only"


def main() -> int:
    found = list(problems(pathlib.Path(__file__).parent.parent / "src/millrace"))
    print(*found, sep="\n", file=sys.stderr) if found else None
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
