# SPDX-License-Identifier: Apache-2.0
"""Checks the #includes of src/millrace against the levels of the house: a folder includes only lower levels, never a
peer. Helpers of tests stay out of the product. The drawing "After" of docs/design/index.md shows these #includes.

Headers in a folder's detail/, and in S3's client/ and object/, are private to it, and some third-party headers stay in
one folder each, or in two. Of a room in PUBLIC and PARTS other rooms include the headers in PUBLIC only, and each of
its folders includes the folders of its row in PARTS only.
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
# The headers of a room that other rooms, and all of its parts, may include.
PUBLIC = {
    "checkpoint": {
        "checkpoint.h", "compare.h", "exchange/exchange.h", "foreign/follow.h", "foreign/last_good.h", "lineage.h",
        "tensor_file.h",
    },
}  # fmt: skip
# The parts of a room, and for each the parts that it may include: rows above its own, so there is no cycle. Sources at
# the top of the room join them.
PARTS = {
    "checkpoint": {
        "io": "",
        "records": "io",
        "commit": "io records",
        "snapshot": "io records",
        "save": "records commit snapshot",
        "tier": "io records commit snapshot save",
        "load": "io records commit tier",
        "exchange": "io records",
        "foreign": "io records",
    },
}
TESTS = re.compile(r"(^|/)testing/|_test\.cpp$|(^|/|_)testing\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def crosses(here: pathlib.Path, room: str, name: str) -> str | None:
    """What is wrong when the source `here`, below src/millrace, includes the header `name` of `room`."""
    if room not in PUBLIC or name in PUBLIC[room] or TESTS.search(name):
        return None
    if here.parts[0] != room:
        return f"{name} is private to {room}"
    parts = PARTS[room]
    part, other = (
        path.parts[0] if len(path.parts) > 1 else "" for path in (here.relative_to(room), pathlib.Path(name))
    )
    if part and part not in parts:
        return f"the part {part} has no row in tools/check_layers.py"
    if not part or part == other or TESTS.search(here.as_posix()):
        return None
    if other in parts[part].split() and list(parts).index(other) < list(parts).index(part):
        return None
    return f"{part} includes {name}, which is no part below it"


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
                if wrong := crosses(path.relative_to(root), there, "/".join(parts[2:])):
                    yield f"{path}: {wrong}"
                if TESTS.search(name) and not TESTS.search(path.as_posix()):
                    yield f"{path}: {name} is for tests"
            elif here not in ONLY_IN.get(parts[0], here).split():
                yield f"{path}: <{name}> belongs in {ONLY_IN[parts[0]].replace(' ', ' and ')} only"


def misdrawn(root: pathlib.Path, page: str):
    """Rooms whose row in the drawing behind "After:" does not name the rooms that the product's sources include. Every
    room includes base, and cli and python join all; neither is drawn."""
    included: dict[str, set[str]] = {}
    for path in root.rglob("*.*"):
        here = path.relative_to(root).parts[0]
        if (
            here not in ("cli", "python")
            and path.suffix in (".h", ".cpp", ".inc")
            and not TESTS.search(path.as_posix())
        ):
            rooms = {name.split("/")[1] for name in INCLUDE.findall(path.read_text()) if name.startswith("millrace/")}
            included.setdefault(here, set()).update(rooms - {here, "base"})
    after = page.split("\nAfter:", 1)[1]
    rows = {room: set(names.split(", ")) for room, names in re.findall(r"^    (\w+) +──► (.+)$", after, re.MULTILINE)}
    for room in sorted(included | rows):
        has, drawn = (", ".join(sorted(of.get(room, set()))) for of in (included, rows))
        if has != drawn:
            yield f"docs/design/index.md: draws {room} ──► {drawn or 'base'}; it includes {has or 'base'}"


def main() -> int:
    house = pathlib.Path(__file__).parent.parent
    root = house / "src/millrace"
    found = [*problems(root), *misdrawn(root, (house / "docs/design/index.md").read_text())]
    print(*found, sep="\n", file=sys.stderr) if found else None
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
