#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of other models: their normalizers, pre-tokenizers and added tokens around a vocabulary.

The files of most models may not be copied. Their components are those that public sources name. The vocabularies are
those of Llama-3.2, GPT-2, Llama-2, T5 and BERT (MILLRACE_TEST_DATA), or with --train one for each model that
`tokenizers` makes of the benchmark's text (corpus.py), through the model's own steps, of its size where the text has
that many. It learns from the end of each corpus, as encode.py reads from the start.

    python benchmarks/tokenizer/patterns.py OUT                     # OUT/o200k.json, OUT/qwen3.5.json, ...
    python benchmarks/tokenizer/patterns.py OUT --train CORPUS --mb 4
    python benchmarks/tokenizer/encode.py --tokenizers OUT/o200k.json,OUT/deepseek-v3.json
"""

import argparse
import dataclasses
import itertools
import json
import os
import pathlib

CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
NO_WORD = r"[^\r\n\p{L}\p{N}]?"
O200K = (
    rf"{NO_WORD}{UPPER}*{LOWER}+(?i:{CONTRACTIONS})?|{NO_WORD}{UPPER}+{LOWER}*(?i:{CONTRACTIONS})?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
)
QWEN35 = rf"(?i:{CONTRACTIONS})|{NO_WORD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}"
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"
)
CLIP = rf"{CONTRACTIONS}|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+"
LLAMA3 = rf"(?i:{CONTRACTIONS})|{NO_WORD}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
TEKKEN = rf"{NO_WORD}{UPPER}*{LOWER}+|{NO_WORD}{UPPER}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
NO_HAN = r"&&[^\p{Han}]]"
KIMI = (
    rf"[\p{{Han}}]+|{NO_WORD}{UPPER[:-1]}{NO_HAN}*{LOWER[:-1]}{NO_HAN}+(?i:{CONTRACTIONS})?"
    rf"|{NO_WORD}{UPPER[:-1]}{NO_HAN}+{LOWER[:-1]}{NO_HAN}*(?i:{CONTRACTIONS})?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
)
EXAONE = (
    rf"(?i:{CONTRACTIONS})|{NO_WORD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
# Trinity cuts runs of digits by their length: the first one or two, then groups of three.
THREES = (
    r"\p{Nd}{1,510}(?=(?>\p{Nd}{510})*(?:\P{Nd}|$))|\G\p{Nd}{510}",
    r"\A\p{Nd}{1,2}(?=\p{Nd}{3}+\z)",
    r"\A\p{Nd}{3}|\G\p{Nd}{3}",
)
SCRIPTS = (
    r"(?:[\u4E00-\u9FFF\u3040-\u309F\u30A0-\u30FF\u3400-\u4DBF\uF900-\uFAFF\uFF65-\uFF9F\u2F00-\u2FDF]+"
    r"|[\u0E00-\u0E7F]+|[\u0E80-\u0EFF]+|[\u1780-\u17FF]+|[\u1000-\u109F\uAA60-\uAA7F\uA9E0-\uA9FF]+"
    r"|[\uAC00-\uD7AF\u1100-\u11FF]+)"
)


def split(pattern: str, behavior: str = "Isolated", invert: bool = False) -> dict:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def byte_level(use_regex: bool = False) -> dict:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def digits(individual: bool) -> dict:
    return {"type": "Digits", "individual_digits": individual}


def punctuation(behavior: str) -> dict:
    return {"type": "Punctuation", "behavior": behavior}


def metaspace(scheme: str = "always", cuts: bool = True) -> dict:
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": cuts}


def replace(pattern: str, content: str, kind: str = "String") -> dict:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def named(*kinds: str) -> list[dict]:
    return [{"type": kind} for kind in kinds]


META = replace(" ", "\u2581")
PREPEND = {"type": "Prepend", "prepend": "\u2581"}
# Gemma's begin with "<", a newline, a tab, "[" or U+2581.
GEMMA_TOKENS = [
    *("\n" * n for n in range(2, 32)),
    *("\u2581" * n for n in range(2, 32)),
    *(f"<{tag}>" for tag in ("table", "td", "tr", "b", "h1", "h2", "/table", "/td", "/tr", "/b", "code", "/code")),
    "[multimodal]",
    "\t\t",
    *(f"<unused{n}>" for n in range(6242)),
]

FROM_FILE = "as the file has it"  # of the base


@dataclasses.dataclass
class Model:
    """The file whose vocabulary it has, pre-tokenizers and normalizers in order, and added tokens (not normalized)."""

    base: str
    steps: list[dict] | str = FROM_FILE
    normalizers: list[dict] | str = dataclasses.field(default_factory=list)
    added: list[str] = dataclasses.field(default_factory=list)
    normalized: bool = False  # the added tokens
    size: int = 0  # of its vocabulary; 0: that of the base is its own


def numbered(form: str, count: int) -> list[str]:
    return [form.format(n) for n in range(count)]


# Models of one line have the same components.
MODELS = {
    "gpt2": Model("gpt2", normalizers=FROM_FILE),  # RoBERTa
    "llama3": Model("llama3.2", normalizers=FROM_FILE),  # OLMo 2, GLM-4, Phi-4, SmolLM3
    "llama2": Model("llama2", normalizers=FROM_FILE),
    "t5": Model("t5-small", normalizers=FROM_FILE),
    "bert-cased": Model("bert-base-cased", normalizers=FROM_FILE),
    "bert-uncased": Model(
        "bert-base-cased",
        normalizers=[
            {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": None,
                "lowercase": True,
            }
        ],
        size=30522,
    ),
    "o200k": Model("llama3.2", [split(O200K), byte_level()], size=199998),  # GPT-4o, gpt-oss
    "granite": Model("llama3.2", [split(LLAMA3, "Removed", True), byte_level()], size=100000),  # GPT-4 on the Hub
    "llama4": Model("llama3.2", [split(O200K), byte_level()], added=numbered("<|reserved_{}|>", 1135), size=200000),
    "tekken": Model(
        "llama3.2", [split(TEKKEN), byte_level()], added=numbered("<SPECIAL_{}>", 1000), size=130072
    ),  # Mistral
    "kimi": Model("llama3.2", [split(KIMI), byte_level()], size=163584),
    "cl100k": Model("llama3.2", [split(CL100K), byte_level()], size=100256),  # as tiktoken has it
    "qwen2": Model("llama3.2", [split(QWEN2), byte_level()], named("NFC"), size=151643),  # Qwen 3
    "qwen3.5": Model("llama3.2", [split(QWEN35), byte_level()], named("NFC"), size=248044),
    "deepseek-v3": Model(
        "llama3.2",
        [
            split(r"\p{N}{1,3}"),
            split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
            split(DEEPSEEK),
            byte_level(),
        ],
        size=128000,
    ),
    "starcoder2": Model("gpt2", [digits(True), byte_level(True)], size=49152),  # SmolLM 2
    "command-r": Model("gpt2", [digits(True), byte_level(True)], named("NFC"), size=255000),
    # Its digits are in the survey; the rest is Command-R's.
    "command-a": Model("gpt2", [split(r"\d{1,3}(?=(?:\d{3})*\b)"), byte_level(True)], named("NFC"), size=255000),
    "tiny-aya": Model("gpt2", [split(r"\d{1,3}(?=(?:\d{3})*\b)"), split(O200K), byte_level()], size=262144),
    "exaone": Model("llama3.2", [split(EXAONE), byte_level()], named("NFC"), size=153600),
    "laguna": Model(
        "llama3.2", [split(r"(?:\r?\n)+(?!\r?\n)", "MergedWithNext"), split(QWEN2), byte_level()], size=100352
    ),
    "superbpe": Model("gpt2", [split(r"\p{N}+"), split(r"(?=(\d{3})+(?!\d))"), byte_level()], size=200005),
    "trinity": Model("llama3.2", [*map(split, THREES), split(SCRIPTS), split(DEEPSEEK), byte_level()], size=200000),
    "modernbert": Model(
        "gpt2", [byte_level(True)], named("NFC"), [" " * n for n in range(2, 25)], normalized=True, size=50254
    ),  # GPT-NeoX, OLMo
    "falcon": Model(
        "gpt2", [punctuation("Contiguous"), byte_level(True), digits(False), split("[0-9][0-9][0-9]")], size=65024
    ),
    "clip": Model(
        "gpt2",
        [split(CLIP, "Removed", True), byte_level(True)],
        [*named("NFC"), replace(r"\s+", " ", "Regex"), *named("Lowercase")],
        size=49406,
    ),
    "gemma": Model(
        "llama2",
        [{"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}],
        [META],
        GEMMA_TOKENS,
        size=255000,
    ),  # 2 and 3
    "mistral-v3": Model("llama2", [metaspace("first", False)], added=numbered("[control_{}]", 768), size=32768),
    "phi-3": Model("llama2", [], [PREPEND, META], numbered("<|placeholder{}|>", 9)),
    "llama2-many": Model("llama2", [], [PREPEND, META], numbered("<extra_{}>", 500), normalized=True),
    "xlm-r": Model("t5-small", [*named("WhitespaceSplit"), metaspace()], FROM_FILE, size=250000),  # mT5
    "xlnet": Model(
        "t5-small",
        [*named("WhitespaceSplit"), metaspace()],
        [
            replace("``", '"'),
            replace("''", '"'),
            *named("NFKD", "StripAccents"),
            FROM_FILE,
            replace(" {2,}", " ", "Regex"),
        ],
        size=32000,
    ),
    "albert": Model(
        "t5-small",
        [*named("WhitespaceSplit"), metaspace()],
        [
            replace("``", '"'),
            replace("''", '"'),
            *named("NFKD", "StripAccents", "Lowercase"),
            FROM_FILE,
            replace(" {2,}", " ", "Regex"),
        ],
        size=30000,
    ),
}


def components(name: str, folder: pathlib.Path) -> dict:
    """The file of a model with the vocabulary and the added tokens of its base."""
    model = MODELS[name]
    result = json.loads((folder / model.base / "tokenizer.json").read_text(encoding="utf-8"))
    if model.steps != FROM_FILE:
        result["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": model.steps} if model.steps else None
    if model.normalizers != FROM_FILE:
        forms = [result["normalizer"] if form == FROM_FILE else form for form in model.normalizers]
        result["normalizer"] = {"type": "Sequence", "normalizers": forms} if forms else None
    return result


def content(name: str, folder: pathlib.Path, vocabulary: dict | None = None) -> dict:
    """The file of a model; `vocabulary`: the "model" of it."""
    model = MODELS[name]
    result = components(name, folder)
    tokens = [token["content"] for token in result["added_tokens"]] + model.added
    kept = len(result["added_tokens"])
    if vocabulary is not None:
        result |= {"model": vocabulary, "added_tokens": [], "post_processor": None}
        kept = 0
    vocab = result["model"]["vocab"]
    known = vocab if isinstance(vocab, dict) else {token: i for i, (token, _) in enumerate(vocab)}
    known = known | {token["content"]: token["id"] for token in result["added_tokens"]}
    fresh = itertools.count(max(known.values()) + 1)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False) | {"normalized": model.normalized}
    for token in tokens[kept:]:
        number = known[token] if token in known else next(fresh)
        result["added_tokens"].append({"id": number, "content": token} | flags)
    return result


# ---- vocabularies


def trained(name: str, folder: pathlib.Path, texts: list[str]) -> dict:
    """The "model" that `tokenizers` makes of `texts` through the steps of this one."""
    import tokenizers as hf

    form = components(name, folder) | {"added_tokens": [], "post_processor": None}
    base, size = MODELS[name].base, MODELS[name].size
    quiet = {"vocab_size": size, "show_progress": False}
    if base == "t5-small":
        trainer = hf.trainers.UnigramTrainer(unk_token="<unk>", special_tokens=["<pad>", "</s>", "<unk>"], **quiet)
        form["model"] |= {"type": "Unigram"}
    elif base == "bert-base-cased":
        specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        trainer = hf.trainers.WordPieceTrainer(special_tokens=specials, **quiet)
        form["model"] |= {"type": "WordPiece"}
    elif base == "llama2":
        specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        trainer = hf.trainers.BpeTrainer(special_tokens=specials, limit_alphabet=8000, **quiet)
        form["pre_tokenizer"] = metaspace()  # as SentencePiece cuts
    else:
        alphabet = hf.pre_tokenizers.ByteLevel.alphabet()
        if name == "clip":
            quiet["end_of_word_suffix"] = "</w>"
        trainer = hf.trainers.BpeTrainer(initial_alphabet=alphabet, **quiet)
        form["model"] |= {"type": "BPE", "ignore_merges": False}
    tokenizer = hf.Tokenizer.from_str(json.dumps(form))
    tokenizer.train_from_iterator(texts, trainer)
    return json.loads(tokenizer.to_str())["model"]


def last_texts(corpus: pathlib.Path, size: float) -> list[str]:
    """`size` bytes from the end of each flavour."""
    texts = []
    for path in sorted(corpus.glob("*.jsonl")):
        left = size
        for line in reversed(path.read_text(encoding="utf-8").splitlines()):
            texts.append(json.loads(line)["text"])
            left -= len(texts[-1].encode())
            if left < 0:
                break
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--train", type=pathlib.Path, metavar="CORPUS", help="train the vocabularies on this text")
    parser.add_argument("--mb", type=float, default=4, help="of each flavour to train on (default %(default)s)")
    parser.add_argument("--only", default="", help="these models (default all)")
    args = parser.parse_args()
    if "MILLRACE_TEST_DATA" not in os.environ:
        parser.error(
            "set MILLRACE_TEST_DATA to the folder whose tokenizers/ holds the vocabularies that are not trained"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    data = pathlib.Path(os.environ["MILLRACE_TEST_DATA"]) / "tokenizers"
    texts = last_texts(args.train, args.mb * 1e6) if args.train else []
    for name in args.only.split(",") if args.only else MODELS:
        vocabulary = trained(name, data, texts) if texts and MODELS[name].size else None
        file = content(name, data, vocabulary)
        (args.out / f"{name}.json").write_text(json.dumps(file, ensure_ascii=False), encoding="utf-8")
        print(f"{name}: {len(file['model']['vocab']):,} entries", flush=True)


if __name__ == "__main__":
    main()
