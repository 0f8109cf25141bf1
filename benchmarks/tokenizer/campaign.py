#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A campaign of exactness: ids of much real text, of the tokenizers of many models, against the `tokenizers` package.

Makes the corpora (corpus.py) and the models' files (patterns.py; MILLRACE_TEST_DATA has the vocabularies) where they are
missing. Goes over all models again and again until as many ids were compared as asked for. Each round cuts the text in
other places, encodes with other batch sizes and through other ways (one text, a batch, with offsets). The word caches
stay full from round to round; one batch of fifty goes to a tokenizer that was just opened. Ends with 1 at any
difference, and prints the seed and a short text that still differs.

    python benchmarks/tokenizer/campaign.py [--ids 1e9] [--only llama3,o200k] [--mb 100] [--work DIR] [--seed N] [--json]
"""

import argparse
import collections
import json
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import tokenizers as hf

import millrace as mr

HERE = pathlib.Path(__file__).resolve().parent
FLAVOURS = ("prose", "code", "multilingual")
ROUND_BYTES = 2_000_000  # of each flavour, before the next model has its turn


def made(work: pathlib.Path, megabytes: int) -> tuple[pathlib.Path, pathlib.Path]:
    """The folders of the corpora and of the models' files."""
    corpus, models = work / "corpus", work / "models"
    if not all((corpus / f"{flavour}.jsonl").exists() for flavour in FLAVOURS):
        subprocess.run([sys.executable, str(HERE / "corpus.py"), str(corpus), "--mb", str(megabytes)], check=True)
    if not (models / "ready").exists():
        subprocess.run([sys.executable, str(HERE / "patterns.py"), str(models), "--train", str(corpus)], check=True)
        (models / "ready").touch()
    return corpus, models


def read(path: pathlib.Path) -> list[str]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def cut(texts: list[str], rng: random.Random, size: int) -> Iterator[list[str]]:
    """Batches of pieces of texts, `size` bytes in all."""
    while size > 0:
        batch = []
        for _ in range(rng.choice((1, 3, 64, 500))):
            text = rng.choice(texts)
            begin = rng.randrange(len(text) + 1)
            piece = text[begin : begin + rng.choice((1, 20, 300, 5_000, 100_000))]
            batch.append(piece)
            size -= len(piece.encode())
        yield batch


class Pair:
    """Both readers of one file."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self.ours = mr.Tokenizer.from_file(str(path))
        self.theirs = hf.Tokenizer.from_file(str(path))
        self.theirs.no_truncation()
        self.theirs.no_padding()

    def expected(self, texts: list[str]) -> list[list[int]]:
        return [each.ids for each in self.theirs.encode_batch_fast(texts, add_special_tokens=False)]

    def found(self, texts: list[str], rng: random.Random) -> list[list[int]]:
        ours = mr.Tokenizer.from_file(str(self.path)) if rng.random() < 0.02 else self.ours
        way = rng.randrange(3)
        if way == 0:
            return [ours.encode(text, add_special_tokens=False).tolist() for text in texts]
        if way == 1:
            return [ours.encode_with_offsets(text, add_special_tokens=False)[0].tolist() for text in texts]
        ids, begins = ours.encode_batch(texts, add_special_tokens=False, threads=rng.choice((1, 2)))
        return [part.tolist() for part in np.split(ids, begins[1:-1])]

    def shortest(self, text: str) -> str:
        """A part of `text` that still differs, made shorter from both ends."""
        step = len(text) // 2
        while step:
            for shorter in (text[step:], text[:-step]):
                if self.ours.encode(shorter, add_special_tokens=False).tolist() != self.expected([shorter])[0]:
                    text = shorter
                    break
            else:
                step //= 2
        return text


def compare(pair: Pair, texts: list[str], rng: random.Random, row: collections.Counter) -> str | None:
    """Counts into `row`; the first text that differs."""
    for batch in cut(texts, rng, ROUND_BYTES):
        expected, found = pair.expected(batch), pair.found(batch, rng)
        row["texts"] += len(batch)
        row["bytes"] += sum(len(text.encode()) for text in batch)
        row["ids"] += sum(map(len, expected))
        if found != expected:
            return next(text for text, a, b in zip(batch, expected, found, strict=True) if a != b)
    return None


def campaign(pairs: dict[str, Pair], corpora: dict[str, list[str]], wanted: int, seed: int) -> dict:
    rows = {name: collections.Counter() for name in pairs}
    differences = []
    started, rounds = time.monotonic(), 0
    while (total := sum(row["ids"] for row in rows.values())) < wanted and not differences:
        rounds += 1
        for name, pair in pairs.items():
            for flavour, texts in corpora.items():
                rng = random.Random(f"{seed} {rounds} {name} {flavour}")
                if (text := compare(pair, texts, rng, rows[name])) is not None:
                    shortest = pair.shortest(text)
                    differences.append(
                        {
                            "tokenizer": name,
                            "round": rounds,
                            "flavour": flavour,
                            "text": shortest,
                            "ours": pair.ours.encode(shortest, add_special_tokens=False).tolist(),
                            "theirs": pair.expected([shortest])[0],
                        }
                    )
        total = sum(row["ids"] for row in rows.values())
        print(f"round {rounds}: {total:,} ids, {len(differences)} differences", file=sys.stderr, flush=True)
    return {
        "ids": total,
        "differences": differences,
        "rounds": rounds,
        "seconds": round(time.monotonic() - started, 1),
        "seed": seed,
        "tokenizers": {name: dict(row) for name, row in rows.items()},
        "versions": {"millrace": mr.__version__, "tokenizers": hf.__version__, "numpy": np.__version__},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=float, default=1e9, help="how many are compared at least (default 1e9)")
    parser.add_argument("--only", default="", help="these models (default all)")
    parser.add_argument("--mb", type=int, default=100, help="of each corpus that is made (default %(default)s)")
    parser.add_argument("--work", type=pathlib.Path, default=HERE.parents[1] / "build" / "campaign")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    args = parser.parse_args()
    print(f"seed {args.seed}", file=sys.stderr)
    corpus, models = made(args.work, args.mb)
    there = {path.stem: path for path in sorted(models.glob("*.json"))}
    names = args.only.split(",") if args.only else list(there)
    if unknown := [name for name in names if name not in there]:
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(there)}")
    pairs = {name: Pair(there[name]) for name in names}
    corpora = {flavour: read(corpus / f"{flavour}.jsonl") for flavour in FLAVOURS}
    result = campaign(pairs, corpora, int(args.ids), args.seed)
    if args.json:
        print(json.dumps(result))
        return 1 if result["differences"] else 0
    for name, row in result["tokenizers"].items():
        print(f"{name:16} {row['texts']:>12,} texts {row['bytes'] / 1e6:>10,.1f} MB {row['ids']:>14,} ids")
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    print(f"{result['ids']:,} ids of {len(pairs)} tokenizers, {len(result['differences'])} differences; {versions}")
    for each in result["differences"]:
        print(f"{each['tokenizer']}: {each['text']!r}\n  ours {each['ours']}\n  theirs {each['theirs']}")
    return 1 if result["differences"] else 0


if __name__ == "__main__":
    sys.exit(main())
