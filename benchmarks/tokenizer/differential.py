#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hostile strings without end: every component and every real file against the `tokenizers` package.

Compares ids, offsets and decoded text of each string, with and without special tokens. Ends with 1 when anything differed.

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
from test_tokenizer_zoo import difference, shrunk
from tokenizer_zoo import ZOO
from trouble import hostile

import millrace as mr


def files(folder):
    """(name, path) of the zoo's files, written to `folder`, and of the real ones."""
    data = os.environ.get("MILLRACE_TEST_DATA")
    for name, build in ZOO.items():
        if name == "normalizer-Precompiled" and not data:
            continue
        path = folder / f"{name}.json"
        path.write_text(json.dumps(build()), encoding="utf-8")
        yield name, path
    if data:
        for path in sorted(pathlib.Path(data, "tokenizers").glob("*/tokenizer.json")):
            yield path.parent.name, path


def compare(name, path, count, seed):
    """How many of `count` strings differ, and the first of them made short."""
    ours, theirs = mr.Tokenizer.from_file(str(path)), hf.Tokenizer.from_file(str(path))
    theirs.no_truncation()
    theirs.no_padding()
    specials = [token.content for token in theirs.get_added_tokens_decoder().values()]
    rng = random.Random(f"{seed} {name}")
    different, example = 0, None
    for i in range(count):
        text, special = hostile(rng, specials), bool(i % 2)
        if difference(ours, theirs, text, special) is None:
            continue
        different += 1
        if example is None:
            short = shrunk(text, lambda t: difference(ours, theirs, t, special) is not None)  # noqa: B023
            example = {"text": short, "special": special, "what": difference(ours, theirs, short, special)}
    return different, example


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strings", type=int, default=10_000, help="strings for each file (default %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--only", default="", help="files whose name contains this")
    parser.add_argument("--json", action="store_true", help="one object a line")
    args = parser.parse_args()
    print(f"seed {args.seed}", file=sys.stderr)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, path in files(pathlib.Path(folder)):
            if args.only not in name:
                continue
            start = time.monotonic()
            different, example = compare(name, path, args.strings, args.seed)
            failed += different > 0
            row = {"name": name, "strings": args.strings, "different": different, "example": example}
            print(json.dumps(row) if args.json else f"{name:40} {different:6} of {args.strings}", flush=True)
            if example and not args.json:
                print(f"    {example['text']!r}, special tokens {example['special']}: {example['what']}")
            print(f"{name}: {time.monotonic() - start:.1f} s", file=sys.stderr)
    print(f"{failed} files differ", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
