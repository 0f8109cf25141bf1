# SPDX-License-Identifier: Apache-2.0

"""Ids without offsets may take a faster way: text is cut, and each part is encoded by
itself. Here are long texts with every kind of
neighbours at the cuts, in every shape of file that has units, against the `tokenizers` package and against the general way.

MILLRACE_TEST_DATA  for the real files and their variants; skipped without it
MILLRACE_TEST_SEED  the seed that a failure prints
MILLRACE_FUZZ_TEXTS long texts for each file (default 10)
"""

import copy
import functools
import json
import os
import pathlib
import random

import pytest

mr = pytest.importorskip("millrace")
hf = pytest.importorskip("tokenizers")

from test_tokenizer_zoo import answer, shrunk  # noqa: E402
from tokenizer_zoo import (  # noqa: E402
    CELLS,
    PATTERNS,
    added_token,
    by_type,
    byte_level,
    charsmap,
    file,
    metaspace,
    model,
    numbered,
    replace,
    sequence,
    split,
)
from trouble import WHITE, hostile, random_character  # noqa: E402

SEED = int(os.environ.get("MILLRACE_TEST_SEED") or random.randrange(2**32))
TEXTS = int(os.environ.get("MILLRACE_FUZZ_TEXTS", "10"))
DATA = os.environ.get("MILLRACE_TEST_DATA")

# Marks that begin a cluster with what follows, that extend one, that compose with ASCII; letters that a clean-up may remove;
# what stands for a space and what a charsmap or BERT makes one; ideographs, white space and controls of ASCII.
CHARACTERS = [
    *"\u0600\u06dd\u08e2\u0d4e\U000110bd\U000111c2\u200d\u0300\u0301\u0338\u0345\u093f\u0e33\u3099\ufe0f\U0001f3fd"
]
CHARACTERS += [*"▁▁▁   \n\t\r\f\v\0\x01\x1f\x7f\x85\xa0\u3000\u200b\ufeff\ufffd中豈㐀\U00020000㋀、。你한\u1100\u1161é"]
CHARACTERS += [
    *"\u0600\u0600\u0301\u0300\u0301\u0300 \u0301",
    "\u0600 ",
    "\u0600\x01 ",
    "e\u0301\u0300",
    " \u0e33\u0300",
]
CHARACTERS += [*"éÉüÜñÑøØłŁőŐǆŉſĳŀΆάΐΰᾳᾈϒЁёЙйЇїҐґԱՍևႠაᲐⴀḀẞẛὈὬ", "``", "''", "`'", "' '"]
CHARACTERS += [*"aAzZ09=<>~!.,;'\"#-_/()[]{}İıſßΣσςǅﬁ½²Å"]

BERT = dict(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=False)
SPACE = by_type("Replace", pattern={"String": " "}, content="▁")
PREPEND = by_type("Prepend", prepend="▁")
WHITE_SPLIT = by_type("WhitespaceSplit")
BERT_SPLIT = by_type("BertPreTokenizer")


@functools.cache
def real(name):
    if not DATA:
        pytest.skip("MILLRACE_TEST_DATA is not set")
    return json.loads((pathlib.Path(DATA) / "tokenizers" / name / "tokenizer.json").read_text(encoding="utf-8"))


def like(name, **components):
    result = copy.deepcopy(real(name)) | components
    result["post_processor"] = None
    return result


def small(name, normalizer=None, pre_tokenizer=None, added=(), drop=(), **changes):
    spec = model(name, drop, **changes)
    return file(spec, normalizer, pre_tokenizer, added=numbered(spec, added))


def bert(**changes):
    return by_type("BertNormalizer", **(BERT | changes))


def added(flags):
    return [added_token("<s>", flags), added_token("tok", flags), added_token("a b", flags), added_token("é", flags)]


LLAMA = sequence("normalizers", PREPEND, SPACE)
# A cluster that begins with U+0600 takes the space behind it along, and what the map has is for the whole of it.
MAP = charsmap(CELLS | {"\u0600".encode(): "p", b"\xcc\x81\xcc\x80": "q", "\u0e33".encode(): "am"})
ODD_MAP = charsmap(CELLS | {b" \xcc\x88": "X", b"\n": "n", b"A": "a b"})
FILES = {
    "llama2": lambda: like("llama2"),
    "llama2-always": lambda: like("llama2", normalizer=None, pre_tokenizer=metaspace(cut=False)),
    "llama2-first": lambda: like("llama2", normalizer=None, pre_tokenizer=metaspace("first", False)),
    "llama2-first-cut": lambda: like("llama2", normalizer=None, pre_tokenizer=metaspace("first")),
    "llama2-never": lambda: like("llama2", normalizer=SPACE, pre_tokenizer=split(" ", "MergedWithPrevious", kind="String")),
    "t5": lambda: like("t5-small"),
    "t5-metaspace": lambda: like("t5-small", pre_tokenizer=metaspace()),
    "t5-first": lambda: like("t5-small", pre_tokenizer=metaspace("first")),
    "t5-lower": lambda: like("t5-small", normalizer=sequence("normalizers", by_type("NFKD"), by_type("Lowercase"),
                                                            real("t5-small")["normalizer"])),
    "bert": lambda: like("bert-base-cased"),
    "bert-uncased": lambda: like("bert-base-cased", normalizer=bert(lowercase=True)),
    "bert-accents": lambda: like("bert-base-cased", normalizer=bert(strip_accents=True)),
    "bert-nothing": lambda: like("bert-base-cased", normalizer=None),
    "bert-nfc": lambda: like("bert-base-cased", normalizer=sequence("normalizers", bert(), by_type("NFC"))),
    "merges": lambda: small("sentences", LLAMA, added=added("n")),
    "merges-raw": lambda: small("sentences", LLAMA, added=added("wlr")),
    "merges-flags": lambda: small("sentences", LLAMA, added=added("nwlr")),
    "merges-cut": lambda: small("sentences", None, metaspace(), added=added("nlr")),
    "merges-first": lambda: small("sentences", None, metaspace("first", False), added=added("n")),
    "merges-never": lambda: small("sentences", None, metaspace("never")),
    "merges-whole": lambda: small("sentences", None, metaspace(), ignore_merges=True),
    "merges-unknown": lambda: small("sentences", LLAMA, byte_fallback=False),
    "merges-unknown-apart": lambda: small("sentences", LLAMA, byte_fallback=False, fuse_unk=False),
    "merges-some-bytes": lambda: small("sentences", LLAMA, drop=["<0xC3>", "<0x0A>"]),
    "merges-vanish": lambda: small("sentences", LLAMA, byte_fallback=False, unk_token=None),
    "merges-across": lambda: small("sentences", LLAMA, **across()),
    "bytes-nfc": lambda: small("bytes", by_type("NFC"),
        sequence("pretokenizers", split(PATTERNS["qwen2"]), byte_level(regex=False)), added=added("ns")),
    "bytes-lower": lambda: small("bytes", sequence("normalizers", by_type("Lowercase"), MAP), byte_level(prefix=True),
        added=added("nlr")),
    "bytes-strip": lambda: small("bytes", by_type("Strip", strip_left=True, strip_right=True), byte_level(prefix=True),
        added=added("lr")),
    "unigram-map": lambda: small("unigram", MAP, sequence("pretokenizers", WHITE_SPLIT, metaspace())),
    "xlnet": lambda: small("unigram", sequence("normalizers", replace("``", '"'), replace("''", '"'), by_type("NFKD"),
        by_type("StripAccents"), by_type("Lowercase"), MAP, replace(" {2,}", " ", "Regex")),
        sequence("pretokenizers", WHITE_SPLIT, metaspace())),
    "replaces": lambda: small("pieces", sequence("normalizers", replace("th", "e"), replace("ee", "-."), by_type("Lowercase"),
        replace("aa", "b")), BERT_SPLIT),
    "unigram-map-metaspace": lambda: small("unigram", MAP, metaspace()),
    "unigram-odd-map": lambda: small("unigram", ODD_MAP, sequence("pretokenizers", WHITE_SPLIT, metaspace("never"))),
    "unigram-late-map": lambda: small("unigram", sequence("normalizers", by_type("Nmt"), by_type("NFKC"), MAP), metaspace()),
    "unigram-first": lambda: small("unigram", by_type("Nmt"), metaspace("first"), added=added("lr")),
    "pieces-punctuation": lambda: small("pieces", sequence("normalizers", by_type("NFKC"), by_type("StripAccents")),
        sequence("pretokenizers", WHITE_SPLIT, by_type("Punctuation", behavior="Removed"))),
    "pieces-contiguous": lambda: small("pieces", by_type("NFD"),
        sequence("pretokenizers", WHITE_SPLIT, by_type("Punctuation", behavior="Contiguous"), by_type("Digits", individual_digits=True))),
    "pieces-whitespace": lambda: small("pieces", by_type("Lowercase"), by_type("Whitespace")),
    "pieces-added": lambda: small("pieces", bert(lowercase=True), by_type("BertPreTokenizer"), added=added("n")),
}  # fmt: skip


def across():
    """Merges that join spaces with what is before them, digits, and symbols beyond ASCII."""
    spec = model("sentences")
    vocab, merges = spec["vocab"], [m if isinstance(m, list) else m.split(" ") for m in spec["merges"]]
    for left, right in [("e", "▁"), ("e▁", "t"), ("1", "2"), (".", "▁"), ("é", "▁"), ("\n", "a"), ("é", "你")]:
        if left in vocab and right in vocab:
            vocab.setdefault(left + right, len(vocab))
            merges.append([left, right])
    return {"vocab": vocab, "merges": merges}


def long_text(rng, specials):
    """Some ten thousand characters: hostile strings, and runs in which any character stands beside any other."""
    parts = []
    while sum(map(len, parts)) < 10_000:
        parts.append(hostile(rng, specials))
        chosen = [
            rng.choice(CHARACTERS) if rng.random() < 0.9 else random_character(rng) for _ in range(rng.randrange(40))
        ]
        parts.append("".join(chosen))
        parts.append("".join(c + rng.choice((" ", ",", "a", "", rng.choice(WHITE))) for c in chosen))
        parts.append(rng.choice((" ", "\n", "", "the quick brown fox, 1234; jumps! ")))
    return "".join(parts)


@pytest.mark.parametrize("name", FILES)
def test_units_change_nothing(name, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(FILES[name]()), encoding="utf-8")
    ours, theirs = mr.Tokenizer.from_file(str(path)), hf.Tokenizer.from_file(str(path))
    specials = [token.content for token in theirs.get_added_tokens_decoder().values()]

    def differs(text):
        expected = answer(lambda: theirs.encode(text, add_special_tokens=False).ids)
        alone = answer(lambda: ours.encode(text, add_special_tokens=False).tolist())
        with_offsets = answer(lambda: ours.encode_with_offsets(text, add_special_tokens=False)[0].tolist())
        return alone != expected or with_offsets != expected

    rng = random.Random(f"{SEED} {name}")
    for _ in range(TEXTS):
        text = long_text(rng, specials)
        if differs(text):
            text = shrunk(text, differs)
            expected = theirs.encode(text, add_special_tokens=False).tokens
            found = [ours.id_to_token(int(i)) for i in ours.encode(text, add_special_tokens=False)]
            pytest.fail(f"MILLRACE_TEST_SEED={SEED} {name}: {text!r}: {found}, not {expected}")


@pytest.mark.parametrize("name", ["llama2", "t5", "bert", "bert-uncased", "t5-metaspace"])
def test_long_runs(name, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(FILES[name]()), encoding="utf-8")
    tokenizer = mr.Tokenizer.from_file(str(path))
    for unit in ["a", " ", "ab", "a ", "=", "你", "é", "▁", "\n", "0", "e\u0301", "\u0600 ", "\u0600", "\U0001f600"]:
        text = unit * 100_000
        assert tokenizer.encode(text).tolist() == tokenizer.encode_with_offsets(text)[0].tolist()
        tokenizer.encode(unit * 2_000_000)  # quadratic work would take minutes
