# SPDX-License-Identifier: Apache-2.0
"""Fails when a test was skipped that is not on the list of tests/skips.toml, or when no test ran.

Arguments: JUnit files, as `ctest --output-junit` and `pytest --junitxml` write them.
"""

import os
import pathlib
import re
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator

LIST = pathlib.Path(__file__).parent.parent / "tests/skips.toml"


def reason_of(case: ElementTree.Element) -> str | None:
    """Why a test was skipped; None when it ran. CTest has what GoogleTest printed, pytest what the test said."""
    skipped = case.find("skipped")
    if skipped is None or skipped.get("type") == "pytest.xfail":
        return None
    printed = re.search(r"(?:^|: )Skipped\n(.*)", case.findtext("system-out") or "")
    return printed[1] if printed else skipped.get("message", "")


def results(file: str) -> Iterator[tuple[str, str | None]]:
    for case in ElementTree.parse(file).iter("testcase"):
        name = case.get("name", "")
        folder = case.get("classname", "")
        yield name if name == folder else f"{folder}.{name}", reason_of(case)


def allowed(entry: dict[str, str], name: str, reason: str) -> bool:
    return (
        bool(re.search(entry["reason"], reason))
        and bool(re.search(entry.get("test", ""), name))
        and ("unless_env" not in entry or not os.environ.get(entry["unless_env"]))
        and ("if_env" not in entry or bool(os.environ.get(entry["if_env"])))
    )


def check(files: list[str]) -> int:
    entries = tomllib.loads(LIST.read_text())["skip"]
    ran = listed = 0
    unlisted: Counter[str] = Counter()
    example: dict[str, str] = {}
    for file in files:
        for name, reason in results(file):
            if reason is None:
                ran += 1
            elif any(allowed(entry, name, reason) for entry in entries):
                listed += 1
            else:
                unlisted[reason] += 1
                example.setdefault(reason, name)
    print(f"{ran} tests ran, {listed} were skipped as tests/skips.toml allows", file=sys.stderr)
    for reason, count in unlisted.items():
        print(f"skipped without being on the list: {count} x {reason!r}, one is {example[reason]}", file=sys.stderr)
    return 1 if unlisted or ran == 0 else 0


if __name__ == "__main__":
    sys.exit(check(sys.argv[1:]))
