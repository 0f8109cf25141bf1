# SPDX-License-Identifier: Apache-2.0
"""Damaged tokenizer.json files: what `tokenizers` refuses we refuse, what both take gives the same ids.

MILLRACE_TEST_SEED    the seed that a failure prints
MILLRACE_FUZZ_STRINGS five times the number of files (default 3000)
"""

import copy
import json
import os
import random

import pytest

mr = pytest.importorskip("millrace")
hf = pytest.importorskip("tokenizers")

from test_tokenizer_zoo import answer, difference  # noqa: E402
from tokenizer_refused import PADDING, TRUNCATION  # noqa: E402
from tokenizer_zoo import (  # noqa: E402
    added_token,
    by_type,
    decoders,
    file,
    normalizers,
    post_processors,
    pre_tokenizers,
    without,
)

SEED = int(os.environ.get("MILLRACE_TEST_SEED") or random.randrange(2**32))
FILES = int(os.environ.get("MILLRACE_FUZZ_STRINGS", "3000")) // 5
VALUES = [None, True, False, 0, 1, -1, 1.5, "", "a", "ab", "▁", [], {}, ["a"], [["a", 1]], {"a": 1}, 2**32, 127]
NAMES = [
    "Right",
    "BPE",
    "ByteLevel",
    "Sequence",
    "type",
    "more",
    "behavior",
    "Regex",
    "String",
    "direction",
    "unk_id",
    "split",
    "invert",
    "add_prefix_space",
    "length",
    "cleanup",
    "use_regex",
    "str_rep",
    "pattern",
    "content",
    "byte_fallback",
    "dropout",
]
WORDS = by_type("WordLevel", vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]")
PIECES = by_type("WordPiece", continuing_subword_prefix="##", max_input_chars_per_word=100) | without(WORDS, "type")
BPE = by_type("BPE", vocab={"<unk>": 0, "a": 1, "b": 2, "ab": 3}, merges=[["a", "b"]], dropout=None, unk_token="<unk>")
BPE |= {"continuing_subword_prefix": None, "end_of_word_suffix": None}
BPE |= {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
UNIGRAM = by_type("Unigram", vocab=[["<unk>", 0.0], ["a", -1.0]], unk_id=0, byte_fallback=False)


def sound_files():
    for model in (WORDS, PIECES, BPE, UNIGRAM):
        yield file(model, added=[added_token("x", "n", 5)])
        yield file(without(model, "type"))
    yield file(WORDS) | {"truncation": TRUNCATION, "padding": PADDING}
    places = {
        "normalizer": normalizers,
        "pre_tokenizer": pre_tokenizers,
        "post_processor": post_processors,
        "decoder": decoders,
    }
    for place, components in places.items():
        yield from (file(WORDS) | {place: component} for _, component in components())


def places(node, path=()):
    """The path of every value."""
    if path:
        yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def at(node, path):
    for key in path:
        node = node[key]
    return node


def damage(rng, spec):
    for _ in range(rng.choice((1, 1, 2))):
        paths = list(places(spec))
        path, other = rng.choice(paths), rng.choice(paths)
        parent, key, kind = at(spec, path[:-1]), path[-1], rng.randrange(6)
        if kind == 0:
            del parent[key]
        elif kind <= 2:
            parent[key] = copy.deepcopy(rng.choice((*VALUES, *NAMES)))  # or the next damage would be in VALUES
        elif kind == 3 and isinstance(parent, dict):
            parent[rng.choice(NAMES)] = copy.deepcopy(rng.choice((*VALUES, *NAMES)))
        elif kind == 4 and isinstance(parent, dict):
            parent[f"{key}x"] = parent.pop(key)
        else:
            parent[key] = copy.deepcopy(at(spec, other))


def panics(tokenizer, text):
    try:
        tokenizer.encode(text)
    except Exception:
        return False
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return True
    return False


def test_damaged_files(tmp_path):
    rng = random.Random(SEED)
    path = tmp_path / "tokenizer.json"
    files = list(sound_files())
    for _ in range(FILES):
        spec = copy.deepcopy(rng.choice(files))
        damage(rng, spec)
        path.write_text(json.dumps(spec), encoding="utf-8")
        theirs, ours = (
            answer(lambda: hf.Tokenizer.from_file(str(path))),
            answer(lambda: mr.Tokenizer.from_file(str(path))),
        )
        assert theirs or not ours, f"MILLRACE_TEST_SEED={SEED}, taken: {spec}"
        if not theirs or not ours:
            continue
        theirs.no_truncation()
        theirs.no_padding()
        for text in ("ab a x\na,b", " aé1 "):
            if panics(theirs, text):  # a Replace that puts something before the text, and another step behind it
                answer(lambda: ours.encode(text))  # noqa: B023
                continue
            what = difference(ours, theirs, text, True)
            assert what is None, f"MILLRACE_TEST_SEED={SEED}, {spec} on {text!r}: {what}"


PLAIN = '{"version":"1.0","model":{"type":"WordLevel","vocab":{"[UNK]":0,"a":1},"unk_token":"[UNK]"}%s}'


@pytest.mark.parametrize("deep", [124, 125, 126])
def test_nesting(deep, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(PLAIN % (',"normalizer":{"type":"NFC","more":' + "[" * deep + "]" * deep + "}"))
    taken = [answer(lambda: package.Tokenizer.from_file(str(path))) is not None for package in (hf, mr)]  # noqa: B023
    assert taken == [deep < 126] * 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "\ufeff" + PLAIN % "",
        PLAIN % "" + "x",
        PLAIN % ",",
        PLAIN % ',"padding":NaN',
        PLAIN % "/* */",
        *(PLAIN.replace('"a":1', value) % "" for value in ('"a":1e999', '"a":01', '"\\ud800":1', '"\n":1', '"\\x":1')),
    ],
)
def test_what_is_no_json(text, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(text, encoding="utf-8")
    assert answer(lambda: hf.Tokenizer.from_file(str(path))) is None
    with pytest.raises((ValueError, NotImplementedError)):
        mr.Tokenizer.from_file(str(path))


@pytest.mark.parametrize("more", ['"version":"1.0"', '"normalizer":{"type":"Prepend","prepend":"a","prepend":"b"}'])
def test_a_key_that_is_there_twice(more, tmp_path):
    """`tokenizers` takes the last one here and refuses elsewhere."""
    path = tmp_path / "tokenizer.json"
    path.write_text(PLAIN % f",{more}")
    assert answer(lambda: hf.Tokenizer.from_file(str(path)))
    with pytest.raises(NotImplementedError, match="there twice"):
        mr.Tokenizer.from_file(str(path))
