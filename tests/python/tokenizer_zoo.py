# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF001  (characters that look alike are the point)
"""Small tokenizer.json files that between them have every component `tokenizers` knows, made by its trainers and by hand.

`ZOO` maps a name to a function that gives the file's content. Files that are refused are in tokenizer_refused.py.
"""

import base64
import copy
import functools
import itertools
import json
import os
import pathlib
import random
import struct

import tokenizers as hf
from trouble import hostile

AUSTEN = pathlib.Path(__file__).parents[2] / "examples" / "data" / "austen"
BERT_FLAGS = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
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
    "nemotron": rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "kimi": rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{UPPER[:-1]}&&[^\p{{Han}}]]*{LOWER[:-1]}&&[^\p{{Han}}]]+{ENDINGS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{UPPER[:-1]}&&[^\p{{Han}}]]+{LOWER[:-1]}&&[^\p{{Han}}]]*{ENDINGS}?|\p{{N}}{{1,3}}|{TAIL}",
    "word-boundary": r"\b\w+\b",
    "not-word": r"\W+|\B_",
    "space-or-digit": r"\s|\d",
    "empty": r"x*",
    "dot": r".",
    "lines": r"^.*$",
    "case": r"(?i)the|ſ|k",
    "outside": r"[^\P{L}a-e]|\P{^Lu}",
    "camel": r"(?<=\p{Ll})(?=\p{Lu})|(?<=\p{Lu})(?=\p{Lu}\p{Ll})",
    "thousands": r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))",
    "same-again": r"(.)\1+|(['\"]).*?\2",
    "same-name": r"(?<q>['\"]).*?\k<q>",
    "atomic": r"(?>\w+)\s|\d*+|\w++'",
    "nested-set": r"[\w&&[^a-e]&&\P{N}]+|[^[^x-z]]|[]\[^-]+",
    "escapes": r"\u00e9|\x{1F600}|[\x{4e00}-\x{9fa5}]+|\101|\e|\v|\cA|\h{2}",
    "comment": "(?x) a b # [c\n | \\  \\w+ (?#more) ",
    "kept": r"t\Kh|\R|\A.|.\z",
    "any-line": r"(?m)a.b|(?-m:x.y)",
    "case-folds": r"(?i)ß|ﬁ|ΐ|straße|[à-þ]+|\x{10400}|[ꭰ-ꮿ]",
    "case-not": r"(?i)[^k-s\s]+",
    "condition": r"(a)?(?(1)b|c)",
    "absent": r"(?~ab)c",
    "recursive": r"(?<p>\((?:[^()]|\g<p>)*\))",
    "scripts": r"\p{Greek}+|\p{Hiragana}\p{Katakana}?|[\p{Thai}\p{Arabic}]+|\p{ cyrillic }",
    "case-of-class": r"(?i)\p{Lu}|[\p{L}&&[^k]]\P{Lu}|(?-i:\p{Lu}[^\p{Lu}])\w",
    "word-in-set": r"[^\W_]+|½[\w]|[\p{Word}-]\W",
    "no-newline": r"\N+",
    "any": r"\O",
    "ascii": r"(?W:\w+\b)|(?D)\d|(?S:\s\W)",
    "boundary-in-scopes": r"(?i)\ba|(?x) \B [ ] # [ \b",
    "odd-sets": r"[]\w]+|[^]\s-]|[\d-]|[-\d]|[a[^\P{Lu}]]",
    "controls": r"\c[|\C-]|[\c[]\w",
    "options": r"a(?i)b|c(?-i:D)|(?x-i)  e \p{Lu} ",
    "newlines-behind": r".\R*|a\R?",
    "other": r"\p{C}+|\p{Cn}|\p{s}+|\p{ L }",
    "digit-chunks": r"\p{Nd}{1,510}(?=(?>\p{Nd}{510})*(?:\P{Nd}|$))|\G\p{Nd}{510}",
    "digit-lead": r"\A\p{Nd}{1,2}(?=\p{Nd}{3}+\z)",
    "digit-threes": r"\A\p{Nd}{3}|\G\p{Nd}{3}",
    "digit-cuts": r"(?=(\d{3})+(?!\d))",
    "newline-runs": r"(?:\r?\n)+(?!\r?\n)",
    "spaces-by-count": r"\s{4}(?!\S)|\s{2}(?!\S)|\s",
    "around-marks": r"(?=[A-Z ])|(?<=[.,!?;:])(?=.)|(?<=.)(?=[.,!?;:])",
    "anywhere": r"(?=.)|(?<!^)$",
    "line-start": r"(?<!\n)^ |(?<=\w|^)x\Z",
    "ends": r"\b\w{1,3}(?!\w)|(?!\b)..\z",
    "elisions": r"(?i: ?(?:[jtmslndcy]['’]|qu['’]|jusqu['’]|aujourd['’]hui)|['’][rv]e)| ?\p{L}+",
    "hexadecimal": r" (?!\h?\p{N})\h?(?:\p{L}\p{M}*)+",
    "categories": r"[\p{Sc}\p{Sm}]|\p{Zs}{2}|\p{Cf}|\p{Pd}\p{Nd}|\p{Letter}{3}|\p{Co}",
}


def by_type(kind, **fields):
    return {"type": kind, **fields}


def byte_level(prefix=False, regex=True, trim=True):
    return by_type("ByteLevel", add_prefix_space=prefix, trim_offsets=trim, use_regex=regex)


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return by_type("Split", pattern={kind: pattern}, behavior=behavior, invert=invert)


def replace(pattern, content, kind="String"):
    return by_type("Replace", pattern={kind: pattern}, content=content)


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
        "suffix": (models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"), trainers.BpeTrainer(
            vocab_size=900, special_tokens=["<unk>"], limit_alphabet=120, end_of_word_suffix="</w>", **options),
            pre.Whitespace()),
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


def cuts(pre_tokenizer, **components):
    """A file whose model shows where the words are: one unknown token for each."""
    return file(by_type("WordLevel", vocab={"[UNK]": 0}, unk_token="[UNK]"), pre_tokenizer=pre_tokenizer, **components)


def without(fields, *keys):
    return {key: value for key, value in fields.items() if key not in keys}


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

CELLS = {b"\xef\xbc\xa1": "A", b"\xc2\xbd": "1/2", b"\xe2\x80\x8b": "", b"\xef\xac\x81": "fi", b"\t": " ", b"e\xcc\x81": "é",
         b"\xcc\x81": "", b"th": "þ", b"\r\n": "\n", b"\xe2\x99\xa5": "love you"}  # fmt: skip


def charsmap(texts):
    """A "precompiled_charsmap": the double array that finds the keys, and the texts they turn into."""
    pool, places = b"", {}
    for key, text in texts.items():
        places[key] = len(pool)
        pool += text.encode() + b"\0"
    cells, taken, bases = {}, {0}, set()

    def put(node, prefix):
        labels = sorted({key[len(prefix)] for key in texts if key.startswith(prefix) and len(key) > len(prefix)})
        wanted = [*labels, 0] if prefix in places else labels
        base = next(b for b in itertools.count(1) if b not in bases and not taken & {b ^ label for label in wanted})
        bases.add(base)
        taken.update(base ^ label for label in wanted)
        cells[node] = (node ^ base) << 10 | (prefix in places) << 8 | (prefix[-1] if prefix else 0)
        if prefix in places:
            cells[base] = 1 << 31 | places[prefix]
        for label in labels:
            put(base ^ label, prefix + bytes([label]))

    put(0, b"")
    units = [cells.get(i, 0) for i in range(max(cells) // 256 * 256 + 256)]
    array = struct.pack(f"<I{len(units)}I", 4 * len(units), *units)
    return by_type("Precompiled", precompiled_charsmap=base64.b64encode(array + pool).decode())


def normalizers():
    for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel"):
        yield name, by_type(name)
    for left, right in itertools.product((True, False), repeat=2):
        yield f"Strip-{left:d}{right:d}", by_type("Strip", strip_left=left, strip_right=right)
    yield "Prepend", by_type("Prepend", prepend="▁")
    yield "Prepend-nothing", by_type("Prepend", prepend="")
    yield "Prepend-long", by_type("Prepend", prepend="é▁x")
    for i, (pattern, content) in enumerate(
        [({"String": " "}, "▁"), ({"String": "a"}, "éé"), ({"String": "th"}, ""), ({"Regex": r"\s+"}, " "),
         ({"Regex": r"\p{Lu}|[\n\r]"}, "<U>"), ({"Regex": "(?i)e|$"}, "E"), ({"String": "."}, "(.)"), ({"String": ""}, "x"),
         ({"Regex": r"(e)(.)"}, r"\2$1"), ({"Regex": r"\R"}, "\n"), ({"Regex": r"(?<=a)b|(?<!\s)e(?=d)"}, "é"),
         ({"Regex": r"(?m).*"}, ""), ({"String": "\0"}, ""), ({"Regex": "[aeiou ]"}, "")]
    ):  # fmt: skip
        yield f"Replace-{i}", by_type("Replace", pattern=pattern, content=content)
    for clean, chinese, lower in itertools.product((True, False), repeat=3):
        for strip in (None, True, False):
            flags = {"clean_text": clean, "handle_chinese_chars": chinese, "strip_accents": strip, "lowercase": lower}
            yield f"Bert-{clean:d}{chinese:d}{lower:d}-{strip}", by_type("BertNormalizer", **flags)
    spaces = by_type("Replace", pattern={"Regex": r"\s+"}, content=" ")
    yield "clip", sequence("normalizers", by_type("NFC"), spaces, by_type("Lowercase"))
    yield "deep", sequence(
        "normalizers", by_type("Nmt"), by_type("NFKC"), by_type("Strip", strip_left=True, strip_right=True),
        sequence("normalizers", by_type("NFD"), by_type("StripAccents"), by_type("Lowercase")),
        by_type("Replace", pattern={"String": "  "}, content=" "), by_type("Prepend", prepend=" "),
    )  # fmt: skip
    yield "Bert", by_type("Bert", clean_text=True, handle_chinese_chars=True, lowercase=True)
    yield "charsmap", charsmap(CELLS)
    yield "charsmap-of-nothing", charsmap({})
    yield "ByteLevel-twice", sequence("normalizers", by_type("ByteLevel"), by_type("ByteLevel"))
    yield "Sequence-empty", sequence("normalizers", sequence("normalizers"))
    yield "legacy-replace", {"pattern": {"String": "e"}, "content": "ee"}
    yield "legacy-bert", {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    yield "legacy-strip", {"strip_left": True, "strip_right": False}
    yield "wrong-type", by_type("Wrong", normalizers=[by_type("Wrong", prepend="_")])
    yield "legacy-sequence", {"normalizers": [by_type("NFD"), {"prepend": "_"}]}


def precompiled():
    """The charsmap of T5, when the test data is there."""
    path = pathlib.Path(os.environ["MILLRACE_TEST_DATA"]) / "tokenizers" / "t5-small" / "tokenizer.json"
    return json.loads(path.read_text())["normalizer"]


CUTTING = ("Split-th", "Split-s", "Split-x", "Split-gpt2", "Punctuation", "Whitespace", "UnicodeScripts", "Digits",
           "FixedLength-3", "pattern-camel", "pattern-o200k", "pattern-nemotron", "pattern-same-again")  # fmt: skip


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
    yield "FixedLength-default", by_type("FixedLength")
    yield "ByteLevel-default", without(byte_level(True), "use_regex")
    yield "Metaspace-default", by_type("Metaspace", replacement="e")
    yield "Metaspace-space", metaspace("first") | {"replacement": " "}
    for name, pattern in PATTERNS.items():
        yield f"pattern-{name}", split(pattern)
    yield "legacy-metaspace", by_type("Metaspace", replacement="▁", add_prefix_space=True, str_rep="▁")
    yield "legacy-metaspace-never", metaspace("never", add_prefix_space=False)
    several = {
        "deepseek": [*(split(PATTERNS[f"deepseek-{part}"]) for part in ("digits", "cjk", "words")), byte_level(regex=False)],
        "falcon": [by_type("Punctuation", behavior="Contiguous"), byte_level(), by_type("Digits", individual_digits=False),
                   split("[0-9][0-9][0-9]")],
        "scripts": [by_type("UnicodeScripts"), by_type("WhitespaceSplit"), metaspace("first")],
        "first-behind-split": [split(r"\s"), metaspace("first"), by_type("Digits", individual_digits=True)],
        "clip": [split(r"'s|'t|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+", "Removed", True), byte_level(regex=False)],
        "nested": [sequence("pretokenizers"), sequence("pretokenizers", by_type("Whitespace"),
                   sequence("pretokenizers", by_type("FixedLength", length=2)))],
        "digits-bytes-punctuation": [by_type("Digits", individual_digits=True), byte_level(True), by_type("Punctuation")],
        "bytes-twice": [byte_level(True), byte_level(True)],
        "metaspace-bytes": [metaspace("first"), byte_level(True, False)],
        "bytes-metaspace": [byte_level(True, False), metaspace("first")],
        "metaspace-twice": [metaspace(), metaspace()],
        "fixed-metaspace": [by_type("WhitespaceSplit"), by_type("FixedLength", length=4), metaspace()],
        "digits-scripts": [by_type("Digits", individual_digits=False), by_type("UnicodeScripts")],
        "llama3-prefix": [split(PATTERNS["llama3"]), byte_level(True, False)],
        "llama3-kept": [split(PATTERNS["llama3"], "Removed", True), byte_level(regex=False)],
        "llama3-merged": [split(PATTERNS["llama3"], "MergedWithPrevious"), byte_level(regex=False)],
    }  # fmt: skip
    for name, items in several.items():
        yield name, sequence("pretokenizers", *items)


def decoders():
    for cleanup in (True, False):
        yield f"WordPiece-{cleanup:d}", by_type("WordPiece", prefix="##", cleanup=cleanup)
        yield f"CTC-{cleanup:d}", by_type("CTC", pad_token="t", word_delimiter_token="e", cleanup=cleanup)
    for scheme in ("always", "first", "never"):
        yield f"Metaspace-{scheme}", metaspace(scheme)
    for suffix in ("</w>", "e"):
        yield f"BPEDecoder-{suffix[-1]}", by_type("BPEDecoder", suffix=suffix)
    for name in ("ByteLevel", "ByteFallback", "Fuse"):
        yield name, byte_level() if name == "ByteLevel" else by_type(name)
    space = by_type("Replace", pattern={"String": "▁"}, content=" ")
    yield "Replace", space
    yield "Replace-regex", by_type("Replace", pattern={"Regex": r"\p{Lu}+"}, content="U")
    yield "none", None
    for start, stop in ((2, 0), (0, 1), (3, 3)):
        yield f"Strip-{start}{stop}", by_type("Strip", content="e", start=start, stop=stop)
    yield "WordPiece-all", by_type("WordPiece", prefix="", cleanup=True)
    yield "CTC-long", by_type("CTC", pad_token="the", word_delimiter_token="", cleanup=True)
    yield "Metaspace-e", metaspace() | {"replacement": "e"}
    yield "Replace-nothing", by_type("Replace", pattern={"Regex": "$|^"}, content="-")
    fallback, fuse = by_type("ByteFallback"), by_type("Fuse")
    several = {
        "llama2": [space, fallback, fuse, by_type("Strip", content=" ", start=1, stop=0)],
        "fallback-metaspace": [fallback, metaspace()],
        "fuse-fallback": [fuse, fallback],
        "fuse-strip": [fuse, by_type("Strip", content="e", start=2, stop=1)],
        "metaspace-fallback-fuse-strip": [metaspace("first"), fallback, fuse, by_type("Strip", content=" ", start=1, stop=0)],
        "ctc-bpe": [by_type("CTC", pad_token="a", word_delimiter_token="e", cleanup=True), by_type("BPEDecoder", suffix="a")],
        "bytes-replace": [byte_level(), by_type("Replace", pattern={"String": " "}, content="_")],
        "fuse-bytes": [fuse, byte_level()],
        "pieces-bytes": [by_type("WordPiece", prefix="##", cleanup=True), byte_level()],
        "nothing": [],
    }  # fmt: skip
    for name, items in several.items():
        yield name, sequence("decoders", *items)
    yield "legacy-ctc", {"pad_token": "t", "word_delimiter_token": "e", "cleanup": True}
    yield "legacy-replace", {"pattern": {"String": "e"}, "content": "x"}
    yield "legacy-suffix-first", {"prefix": "e", "cleanup": False, "suffix": "a"}
    untyped = [{"suffix": "</w>"}, {"prefix": "##", "cleanup": True}, by_type("Wrong", content="e", start=1, stop=1)]
    yield "legacy", sequence("decoders", *untyped)


TEXT_A, TEXT_B = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
BERT = by_type("BertProcessing", sep=["x", 4], cls=["y", 5])


def piece(name):
    return {"SpecialToken": {"id": name, "type_id": 1}}


def template(*pieces):
    special = {
        "<s>": {"id": "<s>", "ids": [7, 8], "tokens": ["a", "b"]},
        "</s>": {"id": "</s>", "ids": [9], "tokens": ["c"]},
        "<far>": {"id": "not its name", "ids": [10**6], "tokens": ["d"]},
        "<none>": {"id": "<none>", "ids": [], "tokens": []},
    }
    return by_type("TemplateProcessing", single=list(pieces), pair=[TEXT_A, TEXT_B], special_tokens=special)


def roberta(trim=True, prefix=False):
    return by_type("RobertaProcessing", sep=["x", 4], cls=["y", 5], trim_offsets=trim, add_prefix_space=prefix)


def post_processors():
    yield "template", template(piece("<s>"), TEXT_A, piece("</s>"), piece("<s>"))
    yield "template-behind", template(TEXT_A, piece("</s>"))
    yield "template-odd-tokens", template(piece("<none>"), piece("<far>"), TEXT_A)
    yield "template-no-pair", template(piece("<s>"), TEXT_A) | {"pair": []}
    yield "bert", BERT
    yield "bert-outside", BERT | {"sep": ["x", 10**6]}
    for trim, prefix in itertools.product((True, False), repeat=2):
        yield f"roberta-{trim:d}{prefix:d}", roberta(trim, prefix)
        yield f"bytes-{trim:d}{prefix:d}", byte_level(prefix, trim=trim)
        yield (
            f"template-then-bytes-{trim:d}{prefix:d}",
            sequence("processors", template(piece("<s>"), TEXT_A), byte_level(prefix, trim=trim)),
        )
    yield "bytes-twice", sequence("processors", byte_level(True), byte_level(False))
    yield "bytes-default", without(byte_level(), "use_regex")
    yield "bert-bytes", sequence("processors", BERT, byte_level())
    # A post-processor is told by its fields alone, whatever its type says.
    yield "bert-that-trims", roberta() | {"type": "BertProcessing"}
    yield "roberta-without-trims", BERT | {"type": "RobertaProcessing"}
    # Trimmed twice, with a token put before in between: the first token is not the first any more.
    yield "trim-behind-cls", sequence("processors", roberta(), roberta(True, True))
    yield "roberta-twice", sequence("processors", roberta(), sequence("processors", roberta()), BERT)
    yield "everything", sequence("processors", byte_level(), roberta(), template(TEXT_A, piece("</s>")), byte_level())
    yield "nothing", sequence("processors")
    yield "legacy-bert", without(BERT, "type")
    yield "legacy-roberta", without(roberta(), "type")
    yield "twice", sequence("processors", BERT, BERT, template(piece("<s>"), TEXT_A))
    yield "legacy-template", template(piece("<s>"), TEXT_A) | {"type": "Wrong"}
    yield "untyped-template", without(template(piece("<s>"), TEXT_A), "type")


def every_flag(prefix=""):
    """Added tokens in every combination of their flags, some that overlap and some made of white space."""
    tokens = []
    for bits in range(32):
        flags = "".join(flag for i, flag in enumerate("wlrns") if bits >> i & 1)
        tokens += [added_token(f"{prefix}<t{bits}>", flags), added_token(f"{prefix}tok{bits}", flags)]
    return [*tokens, added_token("É", "ns"), added_token("\n\n", "r"), added_token("the", "n"), added_token("好", "l")]


def odd_tokens():
    """Lists of added tokens that break a rule that one would like to hold."""
    return {
        "twice": [added_token("xx", "s"), added_token("xx", "nr"), added_token("yy"), added_token("yy")],
        "twice-in-vocab": [added_token("the", "nr"), added_token("xx"), added_token("the", "s"), added_token("the", "l")],
        "same-id": [added_token("xx", "", 5000), added_token("yy", "", 5000), added_token("zz", "", 3)],
        "empty": [added_token("", "n"), added_token("xx") | {"more": 1}],
        "nested": [added_token("a" * (i + 1), flags) for i, flags in enumerate(["", "n", "s", "l", "r", "w", "lr", "wn"])],
        "words": [added_token("e", "w"), added_token("the", "wn"), added_token("_", "w"), added_token("é", "w"),
                  added_token("你", "wlr"), added_token("½", "wn"), added_token("\u0301", "w")],
        "odd-characters": [added_token("\0", "s"), added_token("\ufffd", "n"), added_token("\u2028", "lr")],
        "byte-spelling": [added_token("Ġthe", "s"), added_token("Ċ", "n"), added_token(" <c> ", "n")],
        "special-letters": [added_token("a", "s"), added_token("the", "s"), added_token("e", "sn")],
    }  # fmt: skip


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
    for name in ("NFC", "NFD", "NFKC", "NFKD", "Nmt", "StripAccents", "ByteLevel", "Strip-11", "Prepend", "charsmap",
                 "Bert-111-None", "Replace-0"):  # fmt: skip
        add(f"normalizer-{name}-added", lambda c=name: with_added(
            "sentences", normalizer=dict(normalizers())[c], pre_tokenizer=metaspace("first")
        ))  # fmt: skip
    add("normalizer-bytes", lambda: with_added("bytes", normalizer=by_type("ByteLevel"), decoder=byte_level()))
    for name, tokens in odd_tokens().items():
        add(f"added-{name}", lambda t=tokens: file(
            model("bytes"), pre_tokenizer=byte_level(), post_processor=byte_level(), decoder=byte_level(), added=t
        ))  # fmt: skip
    add("added-lower", lambda: file(
        model("bytes"), normalizer=by_type("Lowercase"), pre_tokenizer=byte_level(), decoder=byte_level(),
        added=[added_token("<A>", "ns"), added_token("<b>"), added_token("É", "n"), added_token("é")],
    ))  # fmt: skip
    for name in ("Prepend", "deep", "Replace-13"):
        add(f"first-behind-{name}", lambda c=name: file(
            model("sentences"), normalizer=dict(normalizers())[c], pre_tokenizer=metaspace("first")
        ))  # fmt: skip
    add("strip-then-first", lambda: file(
        model("sentences"), normalizer=by_type("Strip", strip_left=True, strip_right=True), pre_tokenizer=metaspace("first")
    ))  # fmt: skip
    add("first-added", lambda: with_added("sentences", pre_tokenizer=metaspace("first")))
    for name, component in pre_tokenizers():
        base = "bytes" if "ByteLevel" in json.dumps(component) else "sentences"
        add(f"pre-{name}", lambda c=component, b=base: file(model(b), pre_tokenizer=c))
        add(f"cut-{name}", lambda c=component: cuts(c))
        if name.startswith(CUTTING):  # in front of a ByteLevel they cut bytes that are not spelled
            both = sequence("pretokenizers", component, byte_level(regex=name.endswith(("1", "s"))))
            add(f"bytes-{name}", lambda c=both: file(model("bytes"), pre_tokenizer=c, decoder=byte_level()))
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
    words, space, spelled, bert = by_type("Whitespace"), metaspace(), byte_level(), by_type("BertPreTokenizer")
    uncased = by_type("BertNormalizer", **BERT_FLAGS)

    def of(pre_tokenizer, base, keep=None, **changes):
        """`changes` of the trained model, some made from it; `keep` names the fields that stay."""

        def build():
            m = model(base, **{k: v(trained(base)) if callable(v) else v for k, v in changes.items()})
            return file({k: m[k] for k in keep.split()} if keep else m, pre_tokenizer=pre_tokenizer)

        return build

    def scored(score, fallback=(), likely=-30.0):
        """A Unigram with score(old score, token) for each token, and tokens of some bytes."""

        def vocab(m):
            return [[t, score(s, t)] for t, s in m["vocab"]] + [[f"<0x{b:02X}>", likely] for b in fallback]

        return {"vocab": vocab, "byte_fallback": bool(fallback)}

    def old(score, _):
        return score

    return {
        "bpe-unk": of(words, "chars"),
        "bpe-fuse-unk": of(words, "chars", fuse_unk=True),
        "bpe-no-unk": of(words, "chars", unk_token=None),
        "bpe-no-pre-tokenizer": of(None, "chars", fuse_unk=True),
        "bpe-unk-not-there": of(words, "chars", unk_token="<nowhere>"),
        "bpe-nulls": of(words, "chars", fuse_unk=None, byte_fallback=None, ignore_merges=None, dropout=None, more=1),
        "bpe-empty-token": of(words, "chars", vocab=lambda m: m["vocab"] | {"": 800}),
        "bpe-holes": of(words, "chars", vocab=lambda m: {token: 3 * i + 5 for token, i in m["vocab"].items()}),
        "bpe-ignore-merges": of(words, "chars", ignore_merges=True, merges=[]),
        "bpe-long-merges-only": of(words, "chars", merges=lambda m: [x for x in m["merges"] if len("".join(x)) > 2]),
        "bpe-affixes": of(words, "affixes"),
        "bpe-affixes-fallback": of(words, "affixes", byte_fallback=True),
        "bpe-affixes-ignore-merges": of(words, "affixes", ignore_merges=True),
        "bpe-affixes-fuse-unk": of(words, "affixes", fuse_unk=True),
        "bpe-affixes-empty": of(words, "chars", continuing_subword_prefix="", end_of_word_suffix=""),
        "bpe-prefix-only": of(words, "affixes", end_of_word_suffix=None),
        "bpe-suffix-only": lambda: file(
            model("suffix"), by_type("Lowercase"), words, decoder=by_type("BPEDecoder", suffix="</w>")
        ),
        "bpe-fallback": of(space, "sentences"),
        "bpe-fallback-no-merges": of(space, "sentences", merges=[]),
        "bpe-fallback-partial": of(space, "sentences", drop=["<0xE4>", "<0xF0>"], fuse_unk=False),
        "bpe-fallback-partial-fuse-unk": of(space, "sentences", drop=["<0xE4>", "<0xF0>"]),
        "bpe-fallback-no-unk": of(space, "sentences", drop=["<0xE4>"], unk_token=None),
        "bpe-bytes-ignore-merges": of(spelled, "bytes", ignore_merges=True),
        "bpe-bytes-missing": of(spelled, "bytes", drop=["x", "Ċ", "Å"]),
        "bpe-bytes-missing-unk": of(spelled, "bytes", drop=["x", "Ċ", "Å"], unk_token="a"),
        "bpe-dropout-0": of(spelled, "bytes", dropout=0.0),
        "bpe-merges-as-text": of(spelled, "bytes", merges=lambda m: ["#version: 0.2", *map(" ".join, m["merges"])]),
        "bpe-version-late": of(spelled, "bytes", merges=lambda m: [*map(" ".join, m["merges"][:300]), "#version: 0.2"]),
        "bpe-merges-twice": of(spelled, "bytes", merges=lambda m: m["merges"] + m["merges"][:50]),
        "bpe-legacy": of(spelled, "bytes", "vocab merges"),
        "bpe-nothing": of(spelled, "bytes", vocab={}, merges=[]),
        "bpe-alone": lambda: {"model": model("bytes")},
        "bpe-added": lambda: with_added("bytes", pre_tokenizer=byte_level(True), post_processor=byte_level(False)),
        "llama2-added": lambda: with_added(
            "sentences", normalizer=sequence("normalizers", *(dict(normalizers())[n] for n in ("Prepend", "Replace-0")))
        ),
        "unigram": lambda: file(model("unigram"), pre_tokenizer=space, decoder=space),
        "unigram-no-unk": of(space, "unigram", unk_id=None),
        "unigram-no-pre-tokenizer": of(None, "unigram"),
        "unigram-legacy": of(space, "unigram", "vocab unk_id"),
        "unigram-nothing": of(space, "unigram", vocab=[], unk_id=None),
        "unigram-unk-inside": of(space, "unigram", unk_id=50, alpha=0.1, nbest_size=4),
        "unigram-repeats": of(space, "unigram", vocab=lambda m: m["vocab"] + [["▁the", -1.5], ["e", -20.0]]),
        "unigram-empty-token": of(space, "unigram", vocab=lambda m: [*m["vocab"], ["", -2.0]]),
        "unigram-fallback": of(space, "unigram", **scored(old, range(256))),
        "unigram-fallback-partial": of(space, "unigram", **scored(old, range(200))),
        "unigram-fallback-no-unk": of(space, "unigram", unk_id=None, **scored(old, range(256))),
        "unigram-fallback-likely": of(space, "unigram", **scored(old, range(256), 1.0)),
        "unigram-whole-scores": of(space, "unigram", **scored(lambda s, _: int(s))),
        "unigram-equal-scores": of(space, "unigram", **scored(lambda *_: -3.3)),
        "unigram-length-scores": of(space, "unigram", **scored(lambda _, token: -0.1 * len(token))),
        "unigram-positive-scores": of(space, "unigram", **scored(lambda s, _: -s)),
        "unigram-extreme-scores": of(space, "unigram", **scored(lambda _, t: -1e308 if len(t) % 2 else -1e-300)),
        "unigram-trims": lambda: file(model("unigram"), pre_tokenizer=space, post_processor=byte_level(False)),
        "unigram-added": lambda: with_added("unigram", pre_tokenizer=space),
        # XLNet and ALBERT
        "unigram-replaces": lambda: file(
            model("unigram"),
            sequence(
                "normalizers",
                replace("``", '"'),
                replace("th", "e"),
                by_type("NFKD"),
                by_type("StripAccents"),
                by_type("Lowercase"),
                replace(" {2,}", " ", "Regex"),
            ),
            sequence("pretokenizers", by_type("WhitespaceSplit"), space),
        ),
        "pieces-replaces": lambda: file(
            model("pieces"),
            sequence("normalizers", replace("''", "x"), replace("ee", "--"), by_type("Lowercase")),
            bert,
        ),
        "pieces": lambda: file(model("pieces"), uncased, bert, decoder=by_type("WordPiece", prefix="##", cleanup=True)),
        "pieces-short-words": of(bert, "pieces", max_input_chars_per_word=5),
        "pieces-no-words": of(words, "pieces", max_input_chars_per_word=0),
        "pieces-letter-prefix": of(words, "pieces", continuing_subword_prefix="e"),
        "pieces-other-prefix": of(words, "pieces", continuing_subword_prefix=""),
        "pieces-nothing": of(words, "pieces", vocab={"[UNK]": 0}),
        "pieces-no-unk": of(words, "pieces", unk_token="[NONE]"),
        "pieces-legacy": of(bert, "pieces", "vocab unk_token continuing_subword_prefix max_input_chars_per_word"),
        "pieces-added": lambda: with_added("pieces", normalizer=uncased, pre_tokenizer=bert),
        "words": of(words, "words"),
        "words-nothing": of(words, "words", vocab={}),
        "words-no-unk": of(words, "words", unk_token="[NONE]"),
        "words-legacy": of(words, "words", "vocab unk_token"),
    }


ZOO = build_zoo()


def summary(spec):
    """The components of a file in a line."""

    def kinds(component):
        if not isinstance(component, dict):
            return str(component)
        items = next(
            (v for k, v in component.items() if k in ("normalizers", "pretokenizers", "processors", "decoders")), None
        )
        return f"[{' '.join(map(kinds, items))}]" if items is not None else component.get("type", "untyped")

    places = ("normalizer", "pre_tokenizer", "model", "post_processor", "decoder")
    return ", ".join(f"{place} {kinds(spec.get(place))}" for place in places)
