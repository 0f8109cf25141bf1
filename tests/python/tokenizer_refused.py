# SPDX-License-Identifier: Apache-2.0
"""tokenizer.json files that are refused: `REFUSED` by both sides, `NOT_OURS` only by us."""

import itertools

from tokenizer_zoo import (
    BERT,
    BERT_FLAGS,
    CELLS,
    TEXT_A,
    TEXT_B,
    added_token,
    by_type,
    byte_level,
    charsmap,
    cuts,
    file,
    metaspace,
    model,
    piece,
    sequence,
    split,
    template,
    without,
)


def base_with(place, component):
    return file(model("bytes"), pre_tokenizer=byte_level()) | {place: component}


def nested(depth):
    component = by_type("NFC")
    for _ in range(depth):
        component = sequence("normalizers", component)
    return component


TRUNCATION = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
PADDING = {
    "strategy": {"Fixed": 8},
    "direction": "Left",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "!",
}
SPLIT = split("a")
TOKEN = added_token("xx")
# place -> name -> what nobody takes there
REFUSED_COMPONENTS = {
    "version": {"version": "2.0", "version-null": None},
    "more": {"unknown-key": 1},  # of the file itself; components may have some
    "truncation": {"truncation": {"more": 1}, "truncation-list": []}
    | {f"truncation-no-{key}": without(TRUNCATION, key) for key in TRUNCATION if key != "direction"}
    | {f"truncation-null-{key}": TRUNCATION | {key: None} for key in TRUNCATION},
    "padding": {
        "padding": {"more": 1},
        "padding-strategy": PADDING | {"strategy": {"Fixed": 8, "more": 1}},
        "padding-strategy-text": PADDING | {"strategy": "Fixed"},
        "padding-multiple-negative": PADDING | {"pad_to_multiple_of": -1},
    }
    | {f"padding-no-{key}": without(PADDING, key) for key in PADDING if key != "pad_to_multiple_of"}
    | {f"padding-null-{key}": PADDING | {key: None} for key in PADDING if key != "pad_to_multiple_of"},
    "model": {"no-model": None, "model-of-no-type": by_type("bpe", vocab={}, merges=[])},
    "added_tokens": {"added-object": {}, "added-null": None}
    | {f"added-no-{key}": [without(TOKEN, key)] for key in TOKEN}
    | {f"added-null-{key}": [TOKEN | {key: None}] for key in TOKEN},
    "normalizer": {
        "normalizer": by_type("NFX"),
        "normalizer-lower-case": by_type("nfc"),
        "normalizer-text": "NFC",
        "normalizer-of-nothing": {},
        "normalizer-sequence": by_type("Sequence"),
        "normalizer-sequence-null": by_type("Sequence", normalizers=None),
        "replace-regex": by_type("Replace", pattern={"Regex": "["}, content=""),
        "replace-text": by_type("Replace", pattern="a", content=""),
        "replace-no-content": by_type("Replace", pattern={"String": "a"}),
        "prepend-null": by_type("Prepend", prepend=None),
        "strip-one-side": by_type("Strip", strip_left=True),
        "replace-two-patterns": by_type("Replace", pattern={"String": "a", "Regex": "b"}, content="x"),
        "untyped-charsmap": without(charsmap(CELLS), "type"),
        "nested-200-deep": nested(200),
        "charsmap-no-base64": by_type("Precompiled", precompiled_charsmap="!!"),
        "charsmap-short": by_type("Precompiled", precompiled_charsmap="AAAA"),
        "charsmap-empty": by_type("Precompiled", precompiled_charsmap=""),
    }
    | {f"bert-no-{key}": by_type("Bert", **without(BERT_FLAGS, key)) for key in BERT_FLAGS if key != "strip_accents"},
    "pre_tokenizer": {
        "pre-tokenizer": by_type("Whitespaces"),
        "pre-tokenizer-list": [],
        "pre-tokenizer-of-nothing": {},
        "pre-tokenizer-sequence": by_type("Sequence"),
        "behavior": split("a", "Isolate"),
        "behavior-lower-case": split("a", "isolated"),
        "regex": split("("),
        "regex-set-range": split(r"[a-\d]+"),
        "regex-set-range-behind": split(r"[\w-a]+"),
        "regex-repeated-boundary": split(r"\b+a"),
        "regex-repeated-boundary-in-group": split(r"(?:\B){2}a"),
        "regex-numbered-beside-named": split(r"(?<n>a)\1"),
        "split-two-patterns": split("a") | {"pattern": {"String": "a", "Regex": "b"}},
        "use-regex-null": byte_level() | {"use_regex": None},
        "scheme-null": metaspace() | {"prepend_scheme": None},
        "str-rep-number": metaspace() | {"str_rep": 3},
        "behavior-null": by_type("Punctuation", behavior=None),
        "length-null": by_type("FixedLength", length=None),
        "split-text": SPLIT | {"pattern": "a"},
        "split-null": SPLIT | {"pattern": {"String": None}},
        "metaspace": metaspace("first", add_prefix_space=False),
        "metaspace-default-scheme": without(metaspace(add_prefix_space=False), "prepend_scheme"),
        "metaspace-scheme": metaspace("Always"),
        "metaspace-long": metaspace() | {"replacement": "ab"},
        "metaspace-empty": metaspace() | {"replacement": ""},
        "digits": by_type("Digits"),
        "delimiter": by_type("Delimiter", delimiter="x"),
        "delimiter-long": by_type("CharDelimiterSplit", delimiter="ab"),
        "length-negative": by_type("FixedLength", length=-1),
        "bytes-no-prefix": without(byte_level(), "add_prefix_space"),
        "bytes-no-trim": without(byte_level(), "trim_offsets"),
        "untyped-pre-tokenizer": {"individual_digits": True},
        "untyped-metaspace": without(metaspace(), "type"),
    }
    | {f"split-no-{key}": without(SPLIT, key) for key in SPLIT},
    "post_processor": {
        "post-processor": by_type("Bertish"),
        "post-processor-sequence": by_type("Sequence"),
        "template-pair": without(template(TEXT_A), "pair"),
        "template-tokens": without(template(TEXT_A), "special_tokens"),
        "template-token-id": template(TEXT_A) | {"special_tokens": {"<s>": {"ids": [7], "tokens": ["a"]}}},
        "template-type-id": template({"Sequence": {"id": "A"}}),
        "template-pair-id": template(TEXT_A) | {"pair": [{"Sequence": {"id": "C", "type_id": 0}}]},
        "sep-number": BERT | {"sep": [1, 4]},
        "post-use-regex": byte_level() | {"use_regex": "a"},
        "template-text": template() | {"single": "<s> $A"},
        "template-texts": template("<s>", "$A"),
        "template-two-in-one": template(TEXT_A | piece("<s>")),
        "bert-three": BERT | {"sep": ["a", 4, 3]},
        "bert-no-cls": without(BERT, "cls"),
        "post-untyped-bytes": without(byte_level(), "type"),
        "post-bytes": by_type("ByteLevel"),
    },
    "decoder": {
        "bytes-decoder": by_type("ByteLevel"),
        "decoder": by_type("WordPieces"),
        "decoder-of-nothing": {},
        "decoder-sequence": by_type("Sequence"),
        "untyped-byte-level": {"add_prefix_space": True, "trim_offsets": True},
        "untyped-fuse": {"more": 1},
        "strip-long": by_type("Strip", content="ab", start=1, stop=0),
        "strip-negative": by_type("Strip", content="a", start=-1, stop=0),
        "strip-no-stop": by_type("Strip", content="a", start=1),
        "pieces-no-prefix": by_type("WordPiece", cleanup=True),
        "pieces-no-cleanup": by_type("WordPiece", prefix="##"),
        "bpe-no-suffix": by_type("BPEDecoder"),
    },
}
# name -> (trained model, what is changed in it)
REFUSED_MODELS = {
    "type-null": ("bytes", {"type": None}),
    "type-empty": ("words", {"type": ""}),
    "fallback-null": ("unigram", {"byte_fallback": None}),
    "merge-of-nothing": ("bytes", {"merges": [["never", "seen"]]}),
    "merge-of-three": ("bytes", {"merges": ["a b c"]}),
    "merge-of-three-items": ("bytes", {"merges": [["a", "b", "c"]]}),
    "merge-of-one": ("bytes", {"merges": [["a"]]}),
    "merge-empty": ("bytes", {"merges": [""]}),
    "merge-of-space": ("bytes", {"merges": [" a"]}),
    "merges-of-both-kinds": ("bytes", {"merges": ["#version: 0.2", ["a", "b"]]}),
    "merges-null": ("bytes", {"merges": None}),
    "vocab-null": ("bytes", {"vocab": None}),
    "dropout-above-1": ("bytes", {"dropout": 1.5}),
    "dropout-text": ("bytes", {"dropout": "0"}),
    "flag-text": ("bytes", {"fuse_unk": "true"}),
    "unk-number": ("bytes", {"unk_token": 1}),
    "id-negative": ("words", {"vocab": {"a": -1}}),
    "id-fraction": ("words", {"vocab": {"a": 1.0}}),
    "id-text": ("words", {"vocab": {"a": "1"}}),
    "id-large": ("words", {"vocab": {"a": 2**32}}),
    "words-unk-null": ("words", {"unk_token": None}),
    "pieces-prefix-null": ("pieces", {"continuing_subword_prefix": None}),
    "pieces-length-negative": ("pieces", {"max_input_chars_per_word": -1}),
    "unigram-unk-outside": ("unigram", {"unk_id": 10**6}),
    "unigram-unk-negative": ("unigram", {"unk_id": -1}),
    "unigram-unk-fraction": ("unigram", {"unk_id": 0.0}),
    "unigram-nothing-unk": ("unigram", {"vocab": []}),
    "unigram-three": ("unigram", {"vocab": [["a", -1.0, 2]]}),
    "unigram-no-score": ("unigram", {"vocab": [["a", None]]}),
} | {
    f"{name}-as-{kind}": (name, {"type": kind})
    for name, kind in itertools.product(("bytes", "pieces", "words", "unigram"), ("BPE", "WordPiece", "Unigram"))
    if (name, kind) not in {("bytes", "BPE"), ("pieces", "WordPiece"), ("unigram", "Unigram")}
}  # fmt: skip


def files_of(components, models):
    files = {
        name: lambda place=place, component=component: base_with(place, component)
        for place, named in components.items()
        for name, component in named.items()
    }
    for name, (base, changes) in models.items():
        files[name] = lambda base=base, changes=changes: file(model(base) | changes)
    return files


REFUSED = files_of(REFUSED_COMPONENTS, REFUSED_MODELS) | {
    f"{base}-without-{key}": lambda base=base, key=key: file(without(model(base), key))
    for base, keys in {
        "bytes": "vocab merges",
        "unigram": "vocab",
        "words": "vocab unk_token",
        "pieces": "vocab unk_token continuing_subword_prefix max_input_chars_per_word",
    }.items()
    for key in keys.split()
}

# Files that we refuse and `tokenizers` takes, with the words of our refusal. Some fail in `tokenizers` at the first
# text.
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
    "added-token-vanishes": (
        lambda: file(model("bytes"), normalizer=by_type("StripAccents"), added=[added_token("\u0301", "n")]),
        "added_tokens: .* is empty once it is normalized",
    ),
    "id-for-two": (lambda: file(model("words", vocab={"a": 1, "b": 1})), "the id 1 for two tokens"),
    "id-far-off": (lambda: file(model("words", vocab={"a": 1, "b": 3_000_000})), "the id 3000000"),
    "length-0": (lambda: cuts(by_type("FixedLength", length=0)), "length"),
    "behind-template": (
        lambda: base_with("post_processor", sequence("processors", template(TEXT_A), BERT)),
        "BertProcessing behind TemplateProcessing",
    ),
    "template-twice": (
        lambda: base_with("post_processor", sequence("processors", template(TEXT_A), template(TEXT_A))),
        "TemplateProcessing behind TemplateProcessing",
    ),
    "template-b": (lambda: base_with("post_processor", template(TEXT_B)), "the sequence B"),
    "template-text-twice": (lambda: base_with("post_processor", template(TEXT_A, TEXT_A)), "2 times the text"),
    "template-no-text": (lambda: base_with("post_processor", template(piece("<s>"))), "0 times the text"),
    "template-of-no-token": (lambda: base_with("post_processor", template(piece("<?>"), TEXT_A)), "<\\?>"),
} | {
    f"regex-{name}": (lambda pattern=pattern: cuts(split(pattern)), message)
    for name, pattern, message in [
        ("cluster", r"\X", r"\\X"),
        ("boundary-behind", r"(?<=\b)a", r"\\b in a lookbehind"),
        ("newline-behind", r"(?<=\R)a", r"\\R in a lookbehind"),
        ("young-letter", r"(?i)\ua7c0", r"U\+A7C0 under"),
        ("young-code", r"(?i)\x{A7C0}", r"U\+A7C0 under"),
        ("young-letters", r"(?i)[\p{Lu}]", r"U\+019B without its other case"),
        ("same-again-by-case", r"(?i)(a)\1", "a back reference under"),
        ("ascii-property", r"(?W)\p{Word}", r"\\p\{Word\}"),
        ("negated-nothing", r"[a[^\D\d]]", "a negated set of nothing"),
        ("callout", "(*FAIL)", "a callout"),
        ("longest", "(?L)a|ab", "the option L"),
        ("stopper", "(?~|a)b", r"\(\?~\|"),
        ("condition", r"(?(a)b|c)", "a condition that is no group"),
        ("one-letter", r"\pL", r"\\p without"),
        ("posix", "[[:punct:]]+", "POSIX bracket"),
        ("emoji", r"\p{Emoji}", r"\\p\{Emoji\}"),
        ("block", r"\p{In_Cyrillic}", r"\\p\{In_Cyrillic\}"),
    ]
}  # fmt: skip
