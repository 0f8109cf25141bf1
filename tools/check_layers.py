# SPDX-License-Identifier: Apache-2.0
"""Checks the #includes of src/millrace against the levels of the
house: a folder includes only lower levels, never a peer. Helpers of tests stay out of the product.

Headers in a folder's detail/, and in S3's auth/, client/ and object/, are private to it, and some third-party headers
stay in one folder each.
"""

import pathlib
import re
import sys

LEVELS = {
    "base": 0,
    "http": 1, "formats": 1, "tokenizer": 1, "order": 1, "plan": 1, "lint": 1, "shell": 1, "images": 1,
    "storage": 2, "slurm": 2, "chat": 2,
    "sync": 3, "cache": 3, "video": 3, "prepare": 3, "layout": 3,
    "lerobot": 4, "episodes": 4, "link": 4, "loader": 4, "checkpoint": 4, "pcluster": 4,
    "jobs": 5, "monitor": 5, "bench": 5,
    "doctor": 6,
    "cli": 7, "python": 7,
}  # fmt: skip
ONLY_IN = {
    "CLI": "cli",
    "nanobind": "python",
    "xxhash.h": "base",
    "xxh_x86dispatch.h": "base",
    "curl": "http",
    "pugixml.hpp": "storage",
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
PRIVATE = {"detail", "auth", "client", "object"}
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
            elif ONLY_IN.get(parts[0], here) != here:
                yield f"{path}: <{name}> belongs in {ONLY_IN[parts[0]]} only"


def main() -> int:
    found = list(problems(pathlib.Path(__file__).parent.parent / "src/millrace"))
    print(*found, sep="\n", file=sys.stderr) if found else None
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
