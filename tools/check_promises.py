# SPDX-License-Identifier: Apache-2.0
"""Checks docs/semantics.md against the tests: each promise names tests that exist.

A promise is an item of a list before the heading END. Behind "Tests:" it names them in backticks: `room.`,
`room.Suite`, `room.Suite.Test`, a suite or a test by itself, where `...` stands for anything; a file below tests/ or a
function in one; a verb of ./dev; what a conformance suite is run for. "the same" are those of the promise above.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROMISES = ROOT / "docs" / "semantics.md"
END = "## Not run against the real thing"
TEST = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\((\w+),\s*(\w+)\)", re.M)


def cpp_tests() -> set[str]:
    """room.Suite.Test of all."""
    found = set()
    for file in ROOT.glob("src/millrace/**/*.cpp"):
        room, *below = file.relative_to(ROOT / "src" / "millrace").parts[:-1]
        for suite, test in TEST.findall(file.read_text()):
            found.add(f"{room}.{suite}.{test}")
            if below:  # a room in a room
                found.add(f"{room}_{below[0]}.{suite}.{test}")
    return found


def python_tests() -> set[str]:
    """Paths, names of files, and names of functions."""
    found = set()
    for file in (ROOT / "tests").rglob("*.py"):
        found |= {str(file.relative_to(ROOT)), str(file.relative_to(ROOT).parent), file.name}
        found |= set(re.findall(r"^def (test_\w+)", file.read_text(), re.M))
    return found


def is_cpp_test(name: str, tests: set[str]) -> bool:
    pattern = re.escape(name).replace(r"\.\.\.", r"\w*")
    if name.endswith("."):
        pattern += ".*"
    # From its beginning, its suite or its test on, to the end of one of these.
    return any(re.search(rf"(?:^|\.){pattern}(?:$|\.)", test) or re.match(rf"{pattern}$", test) for test in tests)


def items() -> list[tuple[int, str]]:
    """The promises, each with the number of its first line."""
    found: list[tuple[int, str]] = []
    for number, line in enumerate(PROMISES.read_text().partition(END)[0].splitlines(), 1):
        if line.startswith("- "):
            found.append((number, line))
        elif line.startswith("  ") and found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return found


def main() -> int:
    cpp, python = cpp_tests(), python_tests()
    verbs = set(re.findall(r"^([a-z_-]+)\(\)", (ROOT / "dev").read_text(), re.M))
    conformance = (ROOT / "src/millrace/storage/testing/conformance.h").read_text() + "".join(
        file.read_text() for file in ROOT.glob("src/millrace/storage/**/*test*.cpp")
    )
    wrong = []
    promised = 0
    for number, item in items():
        promised += 1
        tests = item.partition("Tests:")[2]
        names = re.findall(r"`([^`]+)`", tests)
        for name in names:
            known = (
                name in python
                or (name.startswith("./dev ") and name.split()[1] in verbs)
                or is_cpp_test(name, cpp)
                or ("conformance suite" in tests and f'"{name}"' in conformance)
            )
            if not known:
                wrong.append(f"docs/semantics.md:{number}: `{name}` is no test")
        if not names and not re.search(r"\bthe same\b|conformance suite|\w+ tests?\b", tests):
            wrong.append(f"docs/semantics.md:{number}: a promise without a test")
    print(*wrong, sep="\n", file=sys.stderr) if wrong else None
    return 1 if wrong or not promised else 0


if __name__ == "__main__":
    sys.exit(main())
