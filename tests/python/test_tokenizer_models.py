# SPDX-License-Identifier: Apache-2.0
"""Files with the components of today's models (benchmarks/tokenizer/patterns.py) against the `tokenizers` package.

MILLRACE_TEST_DATA    the vocabularies
MILLRACE_TEST_SEED    the seed that a failure prints
MILLRACE_FUZZ_STRINGS strings for each file (default 30)
MILLRACE_TEST_LONG    CPU time of texts of several lengths, too
"""

import json
import os
import pathlib
import random
import sys
import time

import pytest

mr = pytest.importorskip("millrace")
hf = pytest.importorskip("tokenizers")

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks" / "tokenizer"))

import patterns  # noqa: E402
from test_tokenizer_zoo import difference, shrunk  # noqa: E402
from trouble import hostile  # noqa: E402

SEED = int(os.environ.get("MILLRACE_TEST_SEED") or random.randrange(2**32))
STRINGS = int(os.environ.get("MILLRACE_FUZZ_STRINGS", "30"))

# What takes too long where a step is not linear: a quadratic one would need hours for it.
LENGTH = 200_000
RUNS = {
    "one letter": "a",
    "one capital": "A",
    "no space": "qwertyuiopasdfghjklzxcvbnm0123456789+/",
    "one ideograph": "\u4e2d",
    "scripts": "a\u4e2d\u044f\u0e01\u05d0\u30ab\uac00",
    "cases": "aB\u4e2dC",
    "spaces": " ",
    "newlines": "\n",
    "newlines and spaces": " \n",
    "newlines and slashes": ";\n/",
    "apostrophes": "'s",
    "marks": "\u0301",
    "marks of two classes": "\u0301\u0316",
    "digits": "7",
    "symbols": "<",
    "begun tokens": "<unused",
    "emoji": "\U0001f469\u200d",
    "accents": "e\u0301",
    "full stops": ".",
    "lines": "_",
    "no-break spaces": "\u00a0",
    "quotes that ALBERT replaces": "``''",
    "spaces of SentencePiece": "\u2581",
    "jamo": "\u1100\u1161\u11a8",
    "prepended marks": "\u0600",
    "letters and scripts in turn": "a\u4e2db\u044fc\u0e01",
}


@pytest.fixture(scope="module")
def data():
    if "MILLRACE_TEST_DATA" not in os.environ:
        pytest.skip("MILLRACE_TEST_DATA is not set")
    return pathlib.Path(os.environ["MILLRACE_TEST_DATA"]) / "tokenizers"


@pytest.mark.parametrize("name", patterns.MODELS)
def test_ids_are_those_of_tokenizers(name, data, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(patterns.content(name, data)), encoding="utf-8")
    ours, theirs = mr.Tokenizer.from_file(str(path)), hf.Tokenizer.from_file(str(path))
    theirs.no_truncation()
    theirs.no_padding()
    rng = random.Random(f"{SEED} {name}")
    added = [token.content for token in theirs.get_added_tokens_decoder().values()]
    added = rng.sample(added, min(3, len(added)))
    runs = [(text * 500)[: rng.randrange(60, 500)] for text in RUNS.values()]
    for i, text in enumerate([*runs, *(hostile(rng, added) for _ in range(STRINGS))]):
        special = i % 2 == 0
        if difference(ours, theirs, text, special) is not None:
            text = shrunk(text, lambda t: difference(ours, theirs, t, special) is not None)  # noqa: B023
            what = difference(ours, theirs, text, special)
            pytest.fail(f"MILLRACE_TEST_SEED={SEED} {name}, special tokens {special}: {text!r}: {what}")


@pytest.mark.parametrize("name", patterns.MODELS)
def test_long_runs_end(name, data, tmp_path):
    """The fast way and the general one, which offsets need, agree on what may take long."""
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(patterns.content(name, data)), encoding="utf-8")
    tokenizer = mr.Tokenizer.from_file(str(path))
    for what, part in RUNS.items():
        text = part * (LENGTH // len(part.encode()))
        assert tokenizer.encode(text).tolist() == tokenizer.encode_with_offsets(text)[0].tolist(), what


def cpu_time(encode, text):
    """Of this thread, the least of three."""
    times = []
    for _ in range(3):
        start = time.thread_time()
        encode(text)
        times.append(time.thread_time() - start)
    return min(times)


@pytest.mark.skipif(not os.environ.get("MILLRACE_TEST_LONG"), reason="measures CPU time: MILLRACE_TEST_LONG=1")
@pytest.mark.parametrize("name", patterns.MODELS)
def test_time_is_linear(name, data, tmp_path):
    """A megabyte takes less than a quarter of what a quadratic step would need, by its time for 64 kB."""
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(patterns.content(name, data)), encoding="utf-8")
    tokenizer = mr.Tokenizer.from_file(str(path))
    short, long = 1 << 16, 1 << 20
    for what, part in RUNS.items():
        size = len(part.encode())
        for encode in (tokenizer.encode, tokenizer.encode_with_offsets):
            growth = cpu_time(encode, part * (long // size)) / cpu_time(encode, part * (short // size))
            assert growth < (long / short) ** 2 / 4, f"{what}, {encode.__name__}: {growth:.0f} times"
