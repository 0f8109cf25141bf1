#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hostile strings without end: every component and every real file against the `tokenizers` package.

Compares ids, offsets and decoded text of each string, every other one with special tokens, and the text of random ids.
Ends with 1 when anything differed or a file was refused. The real files are those of MILLRACE_TEST_DATA.

    python benchmarks/tokenizer/differential.py [--strings 10000] [--seed N] [--only NAME] [--json]
"""

import argparse
import json
import os
import pathlib
import random
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests" / "python"))

import tokenizers as hf
from test_tokenizer_zoo import answer, difference, shrunk
from tokenizer_zoo import ZOO, summary
from trouble import hostile

import millrace as mr


def files(folder, only):
    """(name, path) of the zoo's files, written to `folder`, and of the real ones."""
    data = os.environ.get("MILLRACE_TEST_DATA")
    for name, build in ZOO.items():
        if only not in name or (name == "normalizer-Precompiled" and not data):
            continue
        path = folder / f"{name}.json"
        path.write_text(json.dumps(build()), encoding="utf-8")
        yield name, path
    for path in sorted(pathlib.Path(data, "tokenizers").glob("*/tokenizer.json")) if data else []:
        if only in path.parent.name:
            yield path.parent.name, path


def decode_difference(ours, theirs, ids, skip):
    """The difference in the text of `ids`; None when `tokenizers` panics."""
    expected = answer(lambda: theirs.decode(ids, skip_special_tokens=skip))
    found = answer(lambda: ours.decode(ids, skip_special_tokens=skip))
    return None if expected is None or found == expected else f"decoded: {found!r}, not {expected!r}"


def cases(rng, specials, id_limit, count):
    """`count` times a text, and behind every tenth a list of ids."""
    for i in range(count):
        yield hostile(rng, specials)
        if i % 10 == 0:
            yield [rng.randrange(id_limit + 10) for _ in range(rng.randrange(30))]


def compare(path, count, rng):
    """The number of `count` strings that differ, and the first of them, shortened."""
    ours, theirs = mr.Tokenizer.from_file(str(path)), hf.Tokenizer.from_file(str(path))
    theirs.no_truncation()
    theirs.no_padding()
    specials = [token.content for token in theirs.get_added_tokens_decoder().values()]
    different, example = 0, None
    for i, case in enumerate(cases(rng, specials, ours.id_limit, count)):
        special = bool(i % 2)
        compared = difference if isinstance(case, str) else decode_difference
        what = compared(ours, theirs, case, special)
        if what is None:
            continue
        different += 1
        if example is None:
            if isinstance(case, str):
                case = shrunk(case, lambda t: difference(ours, theirs, t, special) is not None)  # noqa: B023
            example = {"input": case, "special": special, "what": compared(ours, theirs, case, special)}
    return different, example


def run(name, path, count, seed):
    """A row of the table."""
    start = time.monotonic()
    row = {"name": name, "strings": count, "different": 0, "example": None, "refused": None}
    try:
        row["different"], row["example"] = compare(path, count, random.Random(f"{seed} {name}"))
    except (ValueError, NotImplementedError) as error:
        row["refused"] = str(error)
    row["seconds"] = round(time.monotonic() - start, 2)
    if row["different"] or row["refused"]:
        row["components"] = summary(json.loads(path.read_text(encoding="utf-8")))
    return row


def print_table(rows):
    for row in rows:
        verdict = "refused" if row["refused"] else f"{row['different']} differ" if row["different"] else "equal"
        print(f"{row['name']:48} {row['strings']:8} {row['seconds']:8.1f} s  {verdict}")
        if "components" in row:
            print(f"    {row['components']}\n    {row['refused'] or row['example']}")
    failed = [row["name"] for row in rows if "components" in row]
    print(
        f"{len(rows)} files, {sum(row['strings'] for row in rows)} strings; {len(failed)} files differ or are refused"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strings", type=int, default=10_000, help="strings for each file (default %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--only", default="", help="files whose name contains this")
    parser.add_argument("--json", action="store_true", help="one object a line instead of a table at the end")
    args = parser.parse_args()
    print(f"seed {args.seed}", file=sys.stderr)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, path in files(pathlib.Path(folder), args.only):
            rows.append(run(name, path, args.strings, args.seed))
            failed = sum("components" in row for row in rows)
            print(f"{len(rows)} files, {failed} differ or are refused; last {name}", file=sys.stderr)
            if args.json:
                print(json.dumps(rows[-1]), flush=True)
    if not args.json:
        print_table(rows)
    if not rows:
        parser.error(f"no file's name contains {args.only!r}")
    return 1 if any("components" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
