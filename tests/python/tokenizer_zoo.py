# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF001  (characters that look alike are the point)
"""Small tokenizer.json files that between them have every component `tokenizers` knows, made by its trainers and by hand.

`ZOO` maps a name to a function that gives the file's content; `REFUSED` are files that both sides must refuse.
"""

import copy
import functools
import itertools
import json
import os
import pathlib
import random

import tokenizers as hf
from trouble import hostile

AUSTEN = pathlib.Path(__file__).parents[2] / "examples" / "data" / "austen"
BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")

LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": rf"{ENDINGS}|{LETTERS}|\p{{N}}{{1,3}}|{TAIL}",
    "qwen2": rf"{ENDINGS}|{LETTERS}|\p{{N}}|{TAIL}",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s+",
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDINGS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDINGS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek-digits": r"\p{N}{1,3}",
    "deepseek-cjk": r"[一-龥぀-ゟ゠-ヿ]+",
    "deepseek-words": "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "kimi": r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+",
    "word-boundary": r"\b\w+\b",
    "not-word": r"\W+|\B_",
    "space-or-digit": r"\s|\d",
    "empty": r"x*",
    "dot": r".",
    "lines": r"^.*$",
    "case": r"(?i)the|ſ|k",
    "outside": r"[^\P{L}a-e]|\P{^Lu}",
}


def by_type(kind, **fields):
    return {"type": kind, **fields}


def byte_level(prefix=False, regex=True, trim=True):
    return by_type("ByteLevel", add_prefix_space=prefix, trim_offsets=trim, use_regex=regex)


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return by_type("Split", pattern={kind: pattern}, behavior=behavior, invert=invert)


def sequence(key, *items):
    return by_type("Sequence", **{key: list(items)})


def metaspace(scheme="always", cut=True, **fields):
    return by_type("Metaspace", replacement="▁", prepend_scheme=scheme, split=cut, **fields)


# ---- models


@functools.cache
def corpus():
    rng = random.Random(7)
    book = next(iter(sorted(AUSTEN.glob("*.txt")))).read_text(encoding="utf-8")
    return [hostile(rng, []) for _ in range(1500)] + book[:200_000].splitlines()


@functools.cache
def trained(name):
    """The "model" of a file that a trainer made."""
    options = {"show_progress": False}
    models, trainers, pre = hf.models, hf.trainers, hf.pre_tokenizers
    model, trainer, pre_tokenizer = {
        "bytes": (models.BPE(), trainers.BpeTrainer(
            vocab_size=1500, initial_alphabet=pre.ByteLevel.alphabet(), **options), pre.ByteLevel(False)),
        "chars": (models.BPE(unk_token="<unk>"), trainers.BpeTrainer(
            vocab_size=800, special_tokens=["<unk>"], limit_alphabet=150, **options), pre.Whitespace()),
        "affixes": (models.BPE(unk_token="<unk>", continuing_subword_prefix="##", end_of_word_suffix="</w>"),
            trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>"], limit_alphabet=120,
                continuing_subword_prefix="##", end_of_word_suffix="</w>", **options), pre.Whitespace()),
        "sentences": (models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True), trainers.BpeTrainer(
            vocab_size=1200, special_tokens=["<unk>", *(f"<0x{b:02X}>" for b in range(256))], limit_alphabet=150,
            **options), pre.Metaspace()),
        "unigram": (models.Unigram(), trainers.UnigramTrainer(
            vocab_size=900, unk_token="<unk>", special_tokens=["<unk>", "<s>"], **options), pre.Metaspace()),
        "pieces": (models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(
            vocab_size=900, special_tokens=["[UNK]", "[CLS]", "[SEP]"], limit_alphabet=150, **options),
            pre.BertPreTokenizer()),
        "words": (models.WordLevel(unk_token="[UNK]"), trainers.WordLevelTrainer(
            vocab_size=500, special_tokens=["[UNK]"], **options), pre.Whitespace()),
    }[name]  # fmt: skip
    tokenizer = hf.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    lines = [line for line in corpus() if line.isascii()] if name == "unigram" else corpus()  # its alphabet must fit
    tokenizer.train_from_iterator(lines, trainer)
    return json.loads(tokenizer.to_str())["model"]


def model(name, drop=(), **changes):
    result = copy.deepcopy(trained(name)) | changes
    for token in drop:
        del result["vocab"][token]
    if "merges" in result:
        result["merges"] = [m for m in result["merges"] if not {*m, "".join(m)} & set(drop)]
    return result


def file(model, normalizer=None, pre_tokenizer=None, post_processor=None, decoder=None, added=()):
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": model,
    }


def added_token(content, flags="", token_id=0):
    """Flags: w single_word, l lstrip, r rstrip, n normalized, s special."""
    names = {"w": "single_word", "l": "lstrip", "r": "rstrip", "n": "normalized", "s": "special"}
    return {"id": token_id, "content": content} | {name: flag in flags for flag, name in names.items()}


def numbered(model, tokens):
    """Added tokens with the ids that `tokenizers` gives them."""
    vocab = model["vocab"]
    vocab = vocab if isinstance(vocab, dict) else {token: i for i, (token, _) in enumerate(vocab)}
    count = itertools.count(len(vocab))
    return [token | {"id": vocab[token["content"]] if token["content"] in vocab else next(count)} for token in tokens]


# ---- components


def normalizers():
    for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel"):
        yield name, by_type(name)
    for left, right in itertools.product((True, False), repeat=2):
        yield f"Strip-{left:d}{right:d}", by_type("Strip", strip_left=left, strip_right=right)
    yield "Prepend", by_type("Prepend", prepend="▁")
    yield "Prepend-long", by_type("Prepend", prepend="é▁x")
    for i, (pattern, content) in enumerate(
        [({"String": " "}, "▁"), ({"String": "a"}, "éé"), ({"String": "th"}, ""), ({"Regex": r"\s+"}, " "),
         ({"Regex": r"\p{Lu}|[\n\r]"}, "<U>"), ({"Regex": "(?i)e|$"}, "E")]
    ):  # fmt: skip
        yield f"Replace-{i}", by_type("Replace", pattern=pattern, content=content)
    for clean, chinese, lower in itertools.product((True, False), repeat=3):
        for strip in (None, True, False):
            yield (
                f"Bert-{clean:d}{chinese:d}{lower:d}-{strip}",
                by_type(
                    "BertNormalizer",
                    clean_text=clean,
                    handle_chinese_chars=chinese,
                    strip_accents=strip,
                    lowercase=lower,
                ),
            )
    yield (
        "clip",
        sequence(
            "normalizers",
            by_type("NFC"),
            by_type("Replace", pattern={"Regex": r"\s+"}, content=" "),
            by_type("Lowercase"),
        ),
    )
    yield "deep", sequence(
        "normalizers", by_type("Nmt"), by_type("NFKC"), by_type("Strip", strip_left=True, strip_right=True),
        sequence("normalizers", by_type("NFD"), by_type("StripAccents"), by_type("Lowercase")),
        by_type("Replace", pattern={"String": "  "}, content=" "), by_type("Prepend", prepend=" "),
    )  # fmt: skip
    yield "legacy-bert", {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    yield "legacy-strip", {"strip_left": True, "strip_right": False}
    yield "wrong-type", by_type("Wrong", normalizers=[by_type("Wrong", prepend="_")])
    yield "legacy-sequence", {"normalizers": [by_type("NFD"), {"prepend": "_"}]}


def precompiled():
    """The charsmap of T5, when the test data is there."""
    path = pathlib.Path(os.environ["MILLRACE_TEST_DATA"]) / "tokenizers" / "t5-small" / "tokenizer.json"
    return json.loads(path.read_text())["normalizer"]


def pre_tokenizers():
    for prefix, regex in itertools.product((True, False), repeat=2):
        yield f"ByteLevel-{prefix:d}{regex:d}", byte_level(prefix, regex)
    for scheme, cut in itertools.product(("always", "first", "never"), (True, False)):
        yield f"Metaspace-{scheme}-{cut:d}", metaspace(scheme, cut)
    for name in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts"):
        yield name, by_type(name)
    for behavior in BEHAVIORS:
        yield f"Punctuation-{behavior}", by_type("Punctuation", behavior=behavior)
        for invert in (True, False):
            yield f"Split-the-{behavior}-{invert:d}", split("th", behavior, invert, "String")
            yield f"Split-s-{behavior}-{invert:d}", split(r"\s", behavior, invert)
            yield f"Split-x-{behavior}-{invert:d}", split(r"a*", behavior, invert)
            yield f"Split-gpt2-{behavior}-{invert:d}", split(PATTERNS["gpt2"], behavior, invert)
    yield "Split-empty", split("", kind="String")
    yield "Punctuation-default", by_type("Punctuation")
    for individual in (True, False):
        yield f"Digits-{individual:d}", by_type("Digits", individual_digits=individual)
    yield "Delimiter", by_type("CharDelimiterSplit", delimiter="e")
    for length in (1, 3):
        yield f"FixedLength-{length}", by_type("FixedLength", length=length)
    for name, pattern in PATTERNS.items():
        yield f"pattern-{name}", split(pattern)
    yield (
        "deepseek",
        sequence(
            "pretokenizers",
            *(split(PATTERNS[f"deepseek-{part}"]) for part in ("digits", "cjk", "words")),
            byte_level(regex=False),
        ),
    )
    yield "falcon", sequence(
        "pretokenizers", by_type("Punctuation", behavior="Contiguous"), byte_level(),
        by_type("Digits", individual_digits=False), split("[0-9][0-9][0-9]"),
    )  # fmt: skip
    yield (
        "scripts",
        sequence("pretokenizers", by_type("UnicodeScripts"), by_type("WhitespaceSplit"), metaspace("first")),
    )
    yield (
        "first-behind-split",
        sequence("pretokenizers", split("\\s"), metaspace("first"), by_type("Digits", individual_digits=True)),
    )
    yield (
        "clip",
        sequence(
            "pretokenizers", split(r"'s|'t|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+", "Removed", True), byte_level(regex=False)
        ),
    )
    yield "legacy-metaspace", by_type("Metaspace", replacement="▁", add_prefix_space=True, str_rep="▁")


def decoders():
    for name in ("ByteLevel",):
        yield name, byte_level()
    for cleanup in (True, False):
        yield f"WordPiece-{cleanup:d}", by_type("WordPiece", prefix="##", cleanup=cleanup)
        yield f"CTC-{cleanup:d}", by_type("CTC", pad_token="t", word_delimiter_token="e", cleanup=cleanup)
    for scheme in ("always", "first", "never"):
        yield f"Metaspace-{scheme}", metaspace(scheme)
    yield "BPEDecoder", by_type("BPEDecoder", suffix="</w>")
    yield "BPEDecoder-e", by_type("BPEDecoder", suffix="e")
    for name in ("ByteFallback", "Fuse"):
        yield name, by_type(name)
    yield "Replace", by_type("Replace", pattern={"String": "▁"}, content=" ")
    yield "Replace-regex", by_type("Replace", pattern={"Regex": r"\p{Lu}+"}, content="U")
    yield "llama2", sequence(
        "decoders", by_type("Replace", pattern={"String": "▁"}, content=" "), by_type("ByteFallback"), by_type("Fuse"),
        by_type("Strip", content=" ", start=1, stop=0),
    )  # fmt: skip
    yield "none", None
    yield (
        "legacy",
        sequence(
            "decoders",
            {"suffix": "</w>"},
            {"prefix": "##", "cleanup": True},
            by_type("Wrong", content="e", start=1, stop=1),
        ),
    )


def post_processors():
    special = {
        "<s>": {"id": "<s>", "ids": [7, 8], "tokens": ["a", "b"]},
        "</s>": {"id": "</s>", "ids": [9], "tokens": ["c"]},
    }

    def piece(name):
        return {"SpecialToken": {"id": name, "type_id": 1}}

    text = {"Sequence": {"id": "A", "type_id": 0}}
    pair = [text, {"Sequence": {"id": "B", "type_id": 1}}]

    def template(*pieces):
        return by_type("TemplateProcessing", single=list(pieces), pair=pair, special_tokens=special)

    yield "template", template(piece("<s>"), text, piece("</s>"), piece("<s>"))
    yield "template-behind", template(text, piece("</s>"))
    yield "bert", by_type("BertProcessing", sep=["x", 4], cls=["y", 5])
    for trim, prefix in itertools.product((True, False), repeat=2):
        yield (
            f"roberta-{trim:d}{prefix:d}",
            by_type("RobertaProcessing", sep=["x", 4], cls=["y", 5], trim_offsets=trim, add_prefix_space=prefix),
        )
        yield f"bytes-{trim:d}{prefix:d}", byte_level(prefix, trim=trim)
        yield (
            f"template-then-bytes-{trim:d}{prefix:d}",
            sequence("processors", template(piece("<s>"), text), byte_level(prefix, trim=trim)),
        )
    yield "legacy-bert", {"sep": ["x", 4], "cls": ["y", 5]}
    bert = by_type("BertProcessing", sep=["x", 4], cls=["y", 5])
    yield "twice", sequence("processors", bert, bert, template(piece("<s>"), text))
    yield "legacy-template", template(piece("<s>"), text) | {"type": "Wrong"}


def every_flag(prefix=""):
    """Added tokens in every combination of their flags, some that overlap and some made of white space."""
    tokens = []
    for bits in range(32):
        flags = "".join(flag for i, flag in enumerate("wlrns") if bits >> i & 1)
        tokens += [added_token(f"{prefix}<t{bits}>", flags), added_token(f"{prefix}tok{bits}", flags)]
    return [*tokens, added_token("É", "ns"), added_token("\n\n", "r"), added_token("the", "n"), added_token("好", "l")]


# ---- files


def build_zoo():
    zoo = {}

    def add(name, build):
        assert name not in zoo, name
        zoo[name] = build

    for name, component in normalizers():
        add(f"normalizer-{name}", lambda c=component: file(model("sentences"), normalizer=c))
    add("normalizer-Precompiled", lambda: file(model("sentences"), normalizer=precompiled()))
    add("normalizer-added", lambda: with_added("sentences", normalizer=dict(normalizers())["Lowercase"]))
    add("normalizer-deep-added", lambda: with_added("sentences", normalizer=dict(normalizers())["clip"]))
    add("strip-then-first", lambda: file(
        model("sentences"), normalizer=by_type("Strip", strip_left=True, strip_right=True), pre_tokenizer=metaspace("first")
    ))  # fmt: skip
    add("first-added", lambda: with_added("sentences", pre_tokenizer=metaspace("first")))
    for name, component in pre_tokenizers():
        base = "bytes" if "ByteLevel" in json.dumps(component) else "sentences"
        add(f"pre-{name}", lambda c=component, b=base: file(model(b), pre_tokenizer=c))
    for name, component in post_processors():
        add(f"post-{name}", lambda c=component: file(
            model("bytes"), pre_tokenizer=byte_level(True), post_processor=c, decoder=byte_level()
        ))  # fmt: skip
    for name, component in decoders():
        for base in ("bytes", "sentences", "pieces"):
            add(f"decoder-{name}-{base}", lambda c=component, b=base: file(
                model(b), pre_tokenizer=by_type("Whitespace"), decoder=c
            ))  # fmt: skip
    zoo.update(model_files())
    return zoo


def with_added(base, **components):
    m = model(base)
    return file(m, added=numbered(m, every_flag()), **components)


def model_files():
    words, space = by_type("Whitespace"), metaspace()
    return {
        "bpe-unk": lambda: file(model("chars"), pre_tokenizer=words),
        "bpe-fuse-unk": lambda: file(model("chars", fuse_unk=True), pre_tokenizer=words),
        "bpe-no-unk": lambda: file(model("chars", unk_token=None), pre_tokenizer=words),
        "bpe-no-pre-tokenizer": lambda: file(model("chars", fuse_unk=True)),
        "bpe-unk-not-there": lambda: file(model("chars", unk_token="<nowhere>"), pre_tokenizer=words),
        "bpe-affixes": lambda: file(model("affixes"), pre_tokenizer=words),
        "bpe-affixes-fallback": lambda: file(model("affixes", byte_fallback=True), pre_tokenizer=words),
        "bpe-ignore-merges": lambda: file(model("chars", ignore_merges=True, merges=[]), pre_tokenizer=words),
        "bpe-bytes-ignore-merges": lambda: file(model("bytes", ignore_merges=True), pre_tokenizer=byte_level()),
        "bpe-bytes-missing": lambda: file(model("bytes", drop=["x", "Ċ", "Å"]), pre_tokenizer=byte_level()),
        "bpe-bytes-missing-unk": lambda: file(
            model("bytes", drop=["x", "Ċ", "Å"], unk_token="a"), pre_tokenizer=byte_level()
        ),
        "bpe-fallback": lambda: file(model("sentences"), pre_tokenizer=space),
        "bpe-fallback-partial": lambda: file(
            model("sentences", drop=["<0xE4>", "<0xF0>"], fuse_unk=False), pre_tokenizer=space
        ),
        "bpe-fallback-no-unk": lambda: file(model("sentences", drop=["<0xE4>"], unk_token=None), pre_tokenizer=space),
        "bpe-dropout-0": lambda: file(model("bytes", dropout=0.0), pre_tokenizer=byte_level()),
        "bpe-merges-as-text": lambda: file(
            model("bytes", merges=["#version: 0.2", *(" ".join(m) for m in trained("bytes")["merges"])]),
            pre_tokenizer=byte_level(),
        ),
        "bpe-merges-twice": lambda: file(
            model("bytes", merges=trained("bytes")["merges"] + trained("bytes")["merges"][:50]),
            pre_tokenizer=byte_level(),
        ),
        "bpe-legacy": lambda: file(
            {k: v for k, v in model("bytes").items() if k in ("vocab", "merges")}, pre_tokenizer=byte_level()
        ),
        "bpe-added": lambda: with_added("bytes", pre_tokenizer=byte_level(True), post_processor=byte_level(False)),
        "llama2-added": lambda: with_added(
            "sentences",
            normalizer=sequence(
                "normalizers", by_type("Prepend", prepend="▁"), by_type("Replace", pattern={"String": " "}, content="▁")
            ),
        ),
        "unigram": lambda: file(model("unigram"), pre_tokenizer=space, decoder=space),
        "unigram-fallback": lambda: file(unigram_with_bytes(), pre_tokenizer=space),
        "unigram-no-unk": lambda: file(model("unigram", unk_id=None), pre_tokenizer=space),
        "unigram-no-pre-tokenizer": lambda: file(model("unigram")),
        "unigram-legacy": lambda: file(
            {k: v for k, v in model("unigram").items() if k in ("vocab", "unk_id")}, pre_tokenizer=space
        ),
        "unigram-repeats": lambda: file(
            model("unigram", vocab=trained("unigram")["vocab"] + [["▁the", -1.5], ["e", -20.0]]), pre_tokenizer=space
        ),
        "unigram-trims": lambda: file(model("unigram"), pre_tokenizer=space, post_processor=byte_level(False)),
        "unigram-added": lambda: with_added("unigram", pre_tokenizer=space),
        "pieces": lambda: file(
            model("pieces"), normalizer=dict(normalizers())["Bert-111-None"], pre_tokenizer=by_type("BertPreTokenizer"),
            decoder=by_type("WordPiece", prefix="##", cleanup=True),
        ),
        "pieces-short-words": lambda: file(
            model("pieces", max_input_chars_per_word=5), pre_tokenizer=by_type("BertPreTokenizer")
        ),
        "pieces-other-prefix": lambda: file(model("pieces", continuing_subword_prefix=""), pre_tokenizer=words),
        "pieces-no-unk": lambda: file(model("pieces", unk_token="[NONE]"), pre_tokenizer=words),
        "pieces-legacy": lambda: file(
            {k: v for k, v in model("pieces").items() if k != "type"}, pre_tokenizer=by_type("BertPreTokenizer")
        ),
        "pieces-added": lambda: with_added(
            "pieces", normalizer=dict(normalizers())["Bert-111-None"], pre_tokenizer=by_type("BertPreTokenizer")
        ),
        "words": lambda: file(model("words"), pre_tokenizer=words),
        "words-no-unk": lambda: file(model("words", unk_token="[NONE]"), pre_tokenizer=words),
        "words-legacy": lambda: file(
            {k: v for k, v in model("words").items() if k != "type"}, pre_tokenizer=words
        ),
    }  # fmt: skip


def unigram_with_bytes():
    vocab = trained("unigram")["vocab"]
    return model("unigram", byte_fallback=True, vocab=vocab + [[f"<0x{b:02X}>", -30.0] for b in range(256)])


ZOO = build_zoo()

REFUSED = {
    "version": lambda: file(model("bytes")) | {"version": "2.0"},
    "no-model": lambda: {k: v for k, v in file(model("bytes")).items() if k != "model"},
    "merge-of-nothing": lambda: file(model("bytes", merges=[["never", "seen"]])),
    "merge-of-three": lambda: file(model("bytes", merges=["a b c"])),
    "unigram-unk-outside": lambda: file(model("unigram", unk_id=10**6)),
    "pieces-without-prefix": lambda: file(
        {k: v for k, v in model("pieces").items() if k != "continuing_subword_prefix"}
    ),
    "normalizer": lambda: file(model("bytes"), normalizer=by_type("NFX")),
    "pre-tokenizer": lambda: file(model("bytes"), pre_tokenizer=by_type("Whitespices")),
    "behavior": lambda: file(model("bytes"), pre_tokenizer=split("a", "Isolate")),
    "regex": lambda: file(model("bytes"), pre_tokenizer=split("(")),
    "metaspace": lambda: file(model("bytes"), pre_tokenizer=metaspace("first", add_prefix_space=False)),
    "charsmap": lambda: file(model("bytes"), normalizer=by_type("Replace", pattern={"Regex": "["}, content="")),
    "post-processor": lambda: file(model("bytes"), post_processor=by_type("Bertish")),
    "decoder": lambda: file(model("bytes"), decoder=by_type("WordPieces")),
    "untyped-pre-tokenizer": lambda: file(model("bytes"), pre_tokenizer={"individual_digits": True}),
    "delimiter": lambda: file(model("bytes"), pre_tokenizer=by_type("Delimiter", delimiter="x")),
    "untyped-byte-level": lambda: file(model("bytes"), decoder={"add_prefix_space": True, "trim_offsets": True}),
}

# What we refuse although `tokenizers` takes it, and the words that say so.
NOT_OURS = {
    "dropout": (lambda: file(model("bytes", dropout=0.1)), "dropout"),
    # There the answer changes from one run to the next.
    "added-tokens-alike": (
        lambda: file(
            model("bytes"),
            normalizer=by_type("Lowercase"),
            added=[added_token("Q!", "n", 1), added_token("q!", "n", 2)],
        ),
        "added_tokens: .* is another token once it is normalized",
    ),
    "behind-template": (
        lambda: file(
            model("bytes"),
            post_processor=sequence("processors", dict(post_processors())["template"], dict(post_processors())["bert"]),
        ),
        "BertProcessing behind TemplateProcessing",
    ),
}
