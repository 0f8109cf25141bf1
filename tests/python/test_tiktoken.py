# SPDX-License-Identifier: Apache-2.0
"""Files of tiktoken: the ids of the package, for real vocabularies, the expressions of its encodings and Kimi's, on text and
on strings made to find trouble."""

import base64
import json
import os
import pathlib
import random
import subprocess
import sys

import pytest
from trouble import hostile

import millrace as mr

tiktoken = pytest.importorskip("tiktoken")
hf = pytest.importorskip("tokenizers")

KIMI_PARTS = [
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
]
KIMI = "|".join(KIMI_PARTS)
SPECIAL = {"<|endoftext|>": 200000, "<|im_end|>": 200001, "[BOS]": 200002}


def ranks_of(name: str) -> dict[bytes, int]:
    """Those of a real byte-level file whose ids are in the order of its merges, as tiktoken has it."""
    data = os.environ.get("MILLRACE_TEST_DATA")
    if data is None:
        pytest.skip("MILLRACE_TEST_DATA is not set")
    vocab = json.loads(pathlib.Path(data, "tokenizers", name, "tokenizer.json").read_text())["model"]["vocab"]
    byte_of = {spelled: number for number, spelled in enumerate(spellings())}
    return {bytes(byte_of[c] for c in token): rank for token, rank in vocab.items() if all(c in byte_of for c in token)}


def trained_ranks() -> dict[bytes, int]:
    """A small vocabulary, trained on strings of the grammar."""
    trainer = hf.trainers.BpeTrainer(
        vocab_size=3000, initial_alphabet=hf.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer = hf.Tokenizer(hf.models.BPE())
    tokenizer.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    rng = random.Random(7)
    tokenizer.train_from_iterator([hostile(rng, []) for _ in range(3000)], trainer)
    found = json.loads(tokenizer.to_str())["model"]
    byte_of = {spelled: number for number, spelled in enumerate(spellings())}
    tokens = {bytes([number]): number for number in range(256)}
    for left, right in found["merges"]:
        token = bytes(byte_of[c] for c in left + right)
        tokens.setdefault(token, len(tokens))
    return tokens


def spellings() -> list[str]:
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    spelled = {b: chr(b) for b in shown} | {b: chr(256 + n) for n, b in enumerate(hidden)}
    return [spelled[b] for b in range(256)]


def write(folder: pathlib.Path, name: str, ranks: dict[bytes, int], beside: dict[str, str]) -> pathlib.Path:
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
    (folder / name).write_text("".join(lines))
    for other, text in beside.items():
        (folder / other).write_text(text)
    return folder / name


def kimi_program() -> str:
    return (
        'class T:\n    pat_str = "|".join(\n        [\n'
        + "".join(f'r"""{p}""",\n' for p in KIMI_PARTS)
        + "        ]\n    )\n"
    )


CONFIG = json.dumps({"added_tokens_decoder": {str(id): {"content": token} for token, id in SPECIAL.items()}})


@pytest.mark.parametrize("kind", ["r50k_base", "cl100k_base", "o200k_base", "kimi", "words"])
def test_ids_are_those_of_the_package(kind, tmp_path, seeded):
    ranks = trained_ranks()
    beside = {"tokenizer_config.json": CONFIG}
    name = "tiktoken.model"
    if kind == "kimi":
        pattern = KIMI
        beside["tokenization_kimi.py"] = kimi_program()
    elif kind == "words":
        pattern = r"\p{L}+|\P{L}"
        beside["tiktoken.model.pattern"] = pattern
    else:
        import tiktoken_ext.openai_public as public

        # The package gets ranks from the network; its expressions are in the program.
        public.load_tiktoken_bpe = lambda *_, **__: {}
        pattern = public.ENCODING_CONSTRUCTORS[kind]()["pat_str"]
        name = f"{kind}.tiktoken"
    path = write(tmp_path, name, ranks, beside)
    theirs = tiktoken.Encoding(kind, pat_str=pattern, mergeable_ranks=ranks, special_tokens=SPECIAL)
    ours = mr.Tokenizer.from_file(str(path))
    for _ in range(2000):
        text = hostile(seeded, list(SPECIAL))
        expected = theirs.encode(text, allowed_special="all")
        assert ours.encode(text).tolist() == expected, text
        assert ours.decode(expected, False) == theirs.decode(expected), text


@pytest.mark.parametrize("name", ["gpt2", "llama3.2"])
def test_real_vocabularies(name, tmp_path, seeded):
    ranks = ranks_of(name)
    import tiktoken_ext.openai_public as public

    public.load_tiktoken_bpe = lambda *_, **__: {}
    expression = public.ENCODING_CONSTRUCTORS["r50k_base" if name == "gpt2" else "cl100k_base"]()["pat_str"]
    # Nothing follows the interval, so it need not be possessive, which a tokenizer.json cannot say.
    path = write(tmp_path, "a.tiktoken", ranks, {"a.tiktoken.pattern": expression.replace("{1,3}+", "{1,3}")})
    theirs = tiktoken.Encoding(name, pat_str=expression, mergeable_ranks=ranks, special_tokens={})
    ours = mr.Tokenizer.from_file(str(path))
    text = pathlib.Path(__file__).read_text() + pathlib.Path(mr.__file__).with_name("chat.py").read_text()
    texts = [text, *(hostile(seeded, []) for _ in range(1000))]
    for text in texts:
        found = ours.encode(text).tolist()
        assert found == theirs.encode(text, disallowed_special=()), text


def test_verbs_take_it(tmp_path):
    ranks = {bytes([n]): n for n in range(256)} | {b"he": 256, b"hel": 257}
    path = write(tmp_path, "tiktoken.model", ranks, {"tokenizer_config.json": CONFIG})
    millrace = os.environ.get("MILLRACE_BIN") or str(pathlib.Path(sys.executable).with_name("millrace"))
    failed = subprocess.run([millrace, "tokenizer", "inspect", path], capture_output=True, text=True)
    assert failed.returncode == 1 and "tiktoken.model.pattern" in failed.stderr
    (tmp_path / "tiktoken.model.pattern").write_text("cl100k_base\n")
    shown = subprocess.run([millrace, "tokenizer", "inspect", path], capture_output=True, text=True, check=True)
    assert "BPE of 261 tokens" in shown.stdout and "3 of them special" in shown.stdout
    (tmp_path / "a.txt").write_text("hello\n" * 5)
    mr.prepare(str(tmp_path / "a.txt"), tokenizer=str(path), out=str(tmp_path / "out"))
    with mr.Loader(str(tmp_path / "out"), batch_size=5, seq_len=8, epochs=1) as loader:
        assert next(loader)["input_ids"][0, :3].tolist() == [257, 108, 111]
