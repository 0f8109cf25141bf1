# SPDX-License-Identifier: Apache-2.0
"""Ids, offsets and decoded text against the `tokenizers` package: real files, byte-level files made by its trainer, real
text, and strings made to find trouble. test_tokenizer_zoo.py has every other component.

MILLRACE_TEST_DATA    folder with tokenizers/*/tokenizer.json and text/; what needs it is skipped without it
MILLRACE_TEST_SEED    the seed that a failure prints
MILLRACE_FUZZ_STRINGS hostile strings for each real tokenizer, an eighth for each small one (default 10000); of one in
                      five the offsets and the decoded text are compared too
"""

import json
import os
import pathlib
import random

import numpy as np
import pytest
from trouble import WHITE, hostile, random_character

mr = pytest.importorskip("millrace")
hf = pytest.importorskip("tokenizers")

SEED = int(os.environ.get("MILLRACE_TEST_SEED") or random.randrange(2**32))
STRINGS = int(os.environ.get("MILLRACE_FUZZ_STRINGS", "10000"))
DATA = os.environ.get("MILLRACE_TEST_DATA")

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")

# ---- tokenizers under test


def train(path, *, pre_tokenizer, post_processor=None, added=(), alphabet=True, ignore_merges=False):
    """A small byte-level BPE, saved to `path`."""
    rng = random.Random(7)
    corpus = [hostile(rng, []) for _ in range(1500)] + ["the quick brown fox's jumping, isn't it? " * 3] * 20
    tokenizer = hf.Tokenizer(hf.models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = hf.decoders.ByteLevel()
    letters = hf.pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    trainer = hf.trainers.BpeTrainer(
        vocab_size=2000, initial_alphabet=letters, show_progress=False, limit_alphabet=256 if alphabet else 90
    )
    tokenizer.train_from_iterator(corpus, trainer)
    if post_processor is not None:
        tokenizer.post_processor = post_processor
    tokenizer.add_tokens([t for t in added if not t.special])
    tokenizer.add_special_tokens([t for t in added if t.special])
    tokenizer.save(str(path))


def byte_level(prefix=False, regex=True):
    return hf.pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def split(pattern):
    return hf.pre_tokenizers.Sequence([hf.pre_tokenizers.Split(hf.Regex(pattern), "isolated"), byte_level(regex=False)])


def every_flag():
    """Added tokens in every combination of their flags, some that overlap and some made of white space."""
    tokens = []
    for bits in range(32):
        names = ("single_word", "lstrip", "rstrip", "normalized", "special")
        flags = {name: bool(bits >> i & 1) for i, name in enumerate(names)}
        tokens.append(hf.AddedToken(f"<t{bits}>", **flags))
        tokens.append(hf.AddedToken(f"tok{bits}", **flags))
    tokens += [
        hf.AddedToken("<t1", normalized=False),
        hf.AddedToken("é", special=True),
        hf.AddedToken("Ġ你 "),
        hf.AddedToken("\n\n", rstrip=True, normalized=False),
        hf.AddedToken("the"),
        hf.AddedToken("好", lstrip=True),
    ]
    return tokens


def template():
    return hf.processors.TemplateProcessing(
        single="<t0> $A <t0> tok0", pair="$A $B", special_tokens=[("<t0>", 11), ("tok0", 12)]
    )


TRIM = hf.processors.ByteLevel(trim_offsets=True, add_prefix_space=True)
TRIM_ALL = hf.processors.ByteLevel(trim_offsets=True, add_prefix_space=False)
SMALL = {
    "gpt2-plain": lambda: dict(pre_tokenizer=byte_level()),
    "gpt2-prefix": lambda: dict(pre_tokenizer=byte_level(prefix=True), post_processor=TRIM),
    "gpt2-prefix-added": lambda: dict(
        pre_tokenizer=byte_level(prefix=True), post_processor=TRIM_ALL, added=every_flag()
    ),
    "roberta": lambda: dict(
        pre_tokenizer=byte_level(prefix=True),
        added=every_flag(),
        post_processor=hf.processors.RobertaProcessing(("<t0>", 3), ("<t1>", 4)),
    ),
    "no-regex": lambda: dict(pre_tokenizer=byte_level(regex=False), post_processor=TRIM),
    "missing-bytes": lambda: dict(pre_tokenizer=byte_level(prefix=True), alphabet=False, post_processor=TRIM),
    "llama3-added": lambda: dict(
        pre_tokenizer=split(LLAMA3),
        added=every_flag(),
        ignore_merges=True,
        post_processor=hf.processors.Sequence([TRIM, template()]),
    ),
    "llama3-missing-bytes": lambda: dict(pre_tokenizer=split(LLAMA3), alphabet=False, added=every_flag()),
    "qwen2": lambda: dict(pre_tokenizer=split(QWEN2), post_processor=TRIM_ALL, added=every_flag()),
}
REAL = ["gpt2", "llama3.2", "llama2", "t5-small", "bert-base-cased"]


class Pair:
    """One file, opened by both."""

    def __init__(self, path, real=False):
        self.real = real
        self.ours = mr.Tokenizer.from_file(str(path))
        self.theirs = hf.Tokenizer.from_file(str(path))
        self.theirs.no_truncation()
        self.theirs.no_padding()
        self.specials = [t.content for t in self.theirs.get_added_tokens_decoder().values()][:200]

    def ids(self, text):
        """Theirs, without the offsets that cost most of the time of a long text."""
        return self.theirs.encode_batch_fast([text])[0].ids

    def check(self, texts, what):
        self.check_ids(texts, self.theirs.encode_batch(texts, add_special_tokens=False), what, False)
        encodings = self.theirs.encode_batch(texts)
        self.check_ids(texts, encodings, what, True)
        for text, encoding in zip(texts, encodings, strict=True):
            ids, offsets = self.ours.encode_with_offsets(text)
            assert ids.tolist() == encoding.ids, f"ids with offsets, {what}: {shorten(text)}"
            expected = byte_offsets(text, encoding.offsets)
            if not np.array_equal(offsets, expected):
                at = int(np.argwhere((offsets != expected).any(axis=1))[0, 0])
                token = f"token {at}, {encoding.tokens[at]!r}"
                pytest.fail(f"offset of {token}: {offsets[at]}, not {expected[at]}, {what}: {shorten(text)}")
            self.check_decode(ids, f"{what}: {shorten(text)}")

    def check_ids(self, texts, encodings, what, add_special_tokens):
        flat, bounds = self.ours.encode_batch(texts, add_special_tokens=add_special_tokens)
        assert len(bounds) == len(texts) + 1
        for i, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
            assert flat[bounds[i] : bounds[i + 1]].tolist() == encoding.ids, f"ids, {what}: {shorten(text)}"

    def check_decode(self, ids, what):
        for skip in (True, False):
            expected = self.theirs.decode(list(ids), skip_special_tokens=skip)
            assert self.ours.decode(ids, skip_special_tokens=skip) == expected, f"decode, {what}"


def byte_offsets(text, char_offsets):
    starts = np.zeros(len(text) + 1, np.int64)
    np.cumsum([len(c.encode()) for c in text], out=starts[1:])
    return starts[np.array(char_offsets, np.int64).reshape(-1, 2)]


def shorten(text):
    return repr(text) if len(text) <= 2000 else f"{text[:1000]!r} ... {text[-200:]!r} ({len(text)} characters)"


@pytest.fixture(scope="module", params=REAL + list(SMALL))
def pair(request, tmp_path_factory):
    if request.param in SMALL:
        path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
        train(path, **SMALL[request.param]())
        return Pair(path)
    if not DATA:
        pytest.skip("MILLRACE_TEST_DATA is not set")
    return Pair(pathlib.Path(DATA) / "tokenizers" / request.param / "tokenizer.json", real=True)


# ---- tests


def test_hostile_strings(pair):
    rng = random.Random(SEED)
    count = STRINGS if pair.real else STRINGS // 8
    for start in range(0, count, 500):
        texts = [hostile(rng, pair.specials) for _ in range(min(500, count - start))]
        pair.check(texts[:100], f"MILLRACE_TEST_SEED={SEED}")
        encodings = pair.theirs.encode_batch_fast(texts, add_special_tokens=False)
        pair.check_ids(texts, encodings, f"MILLRACE_TEST_SEED={SEED}", False)


def test_code_points_between_others(pair):
    rng = random.Random(SEED)
    chosen = [chr(c) for c in range(0x300)] + [random_character(rng) for _ in range(4000 if pair.real else 500)]
    texts = ["".join(f"a{c} {c}1{c}.{c}{c}'s{c} \n" for c in chosen[i : i + 50]) for i in range(0, len(chosen), 50)]
    pair.check(texts, f"MILLRACE_TEST_SEED={SEED}")


def test_edges(pair):
    pair.check(["", " ", "\n", "\0", "a", "'", "'s", " 's", "\u3000", "é", *pair.specials[:20], *WHITE], "edges")


def test_long_runs(pair):
    for unit in ["a", "_", " ", "\n", " \n", "é", "你", "ab", "'", "=", "Z9+/", "0"]:
        size = 30_000 if pair.real else 5_000
        # `tokenizers` needs memory quadratic in the number of added tokens that overlap.
        if any(token in unit * 2 for token in pair.specials):
            size = 1_000
        pair.check([unit * (size // len(unit))], "long run")


def test_a_megabyte_without_a_space(pair):
    if not pair.real:
        pytest.skip("the real files show it")
    rng = random.Random(SEED)
    text = "".join(rng.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/", k=1_000_000))
    letters = "".join(rng.choices("abcdefgh", k=1_000_000))
    for long_text in (text, letters):
        assert pair.ours.encode(long_text).tolist() == pair.ids(long_text), f"MILLRACE_TEST_SEED={SEED}"


def test_vocabulary(pair):
    assert pair.ours.vocab_size == pair.theirs.get_vocab_size(with_added_tokens=True)
    rng = random.Random(SEED)
    tokens = list(pair.theirs.get_vocab(with_added_tokens=True).items())
    for token, token_id in rng.sample(tokens, min(3000, len(tokens))):
        assert pair.ours.token_to_id(token) == token_id
        assert pair.ours.id_to_token(token_id) == pair.theirs.id_to_token(token_id)
        pair.check_decode([token_id], token)
    assert pair.ours.token_to_id("no such token at all") is None
    assert pair.ours.id_to_token(2**32 - 2) is None


def test_random_ids_decode_alike(pair):
    rng = random.Random(SEED)
    limit = max(pair.theirs.get_vocab(with_added_tokens=True).values()) + 10
    for _ in range(300):
        ids = [rng.randrange(limit) for _ in range(rng.randrange(40))]
        pair.check_decode(ids, ids)


@pytest.mark.skipif(not DATA, reason="MILLRACE_TEST_DATA is not set")
@pytest.mark.parametrize("name", REAL)
def test_real_text(name):
    pair = Pair(pathlib.Path(DATA) / "tokenizers" / name / "tokenizer.json", real=True)
    for path in sorted((pathlib.Path(DATA) / "text").rglob("*.txt")):
        text = path.read_text(encoding="utf-8", errors="replace")
        assert pair.ours.encode(text).tolist() == pair.ids(text), path
        pair.check(text[:60_000].splitlines(keepends=True), path)


def test_ids_of_added_tokens_are_numbered_anew(tmp_path):
    path = tmp_path / "tokenizer.json"
    train(path, pre_tokenizer=byte_level(), added=[hf.AddedToken("<a>"), hf.AddedToken("<b>", special=True)])
    spec = json.loads(path.read_text())
    size = len(spec["model"]["vocab"])
    spec["added_tokens"][0]["id"], spec["added_tokens"][1]["id"] = 5 * size, 3
    path.write_text(json.dumps(spec))
    pair = Pair(path)
    assert pair.ours.token_to_id("<a>") == pair.theirs.token_to_id("<a>") == size
    pair.check(["x<a>y<b>z"], "numbered anew")
