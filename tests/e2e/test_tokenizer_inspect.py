# SPDX-License-Identifier: Apache-2.0
"""millrace tokenizer inspect: which way a file goes."""

import json
from pathlib import Path

from conftest import Millrace

O200K_HEAD = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t)?|\s+(?!\S)|\s+|[^\s\p{L}]+"
)


def tokenizer_file(folder: Path, pattern: str) -> Path:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    # The byte-level alphabet: bytes that print stand for themselves, the others come behind U+0100.
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    letters = [chr(byte) for byte in printed] + [chr(256 + i) for i in range(len(others))]
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    path = folder / "tokenizer.json"
    path.write_text(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [{"id": 257, "content": "<end>", **added}],
                "normalizer": {"type": "NFC"},
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
                "post_processor": None,
                "decoder": None,
                "model": {
                    "type": "BPE",
                    "vocab": {letter: i for i, letter in enumerate(letters)} | {"aa": 256},
                    "merges": ["a a"],
                },
            }
        )
    )
    return path


def test_a_file_whose_pattern_is_a_table(millrace: Millrace, tmp_path: Path):
    path = tokenizer_file(tmp_path, O200K_HEAD)
    found = millrace("tokenizer", "inspect", path, "--json").object("tokenizer")
    assert found["way"] == "byte-level" and found["why"] == ""
    assert (found["model"], found["vocabulary"], found["merges"], found["id_limit"]) == ("BPE", 257, 1, 258)
    assert (found["added_tokens"], found["special_tokens"]) == (1, 1)
    assert [(step["part"], step["component"], step["engine"]) for step in found["steps"]] == [
        ("normalizer", "NFC", ""),
        ("pre_tokenizer", "Split", "table"),
        ("pre_tokenizer", "ByteLevel", ""),
    ]
    assert found["steps"][1]["pattern"] == O200K_HEAD
    # A run of capitals is read again from each of them: what matches it in the real pattern is left out here.
    assert [step["linear"] for step in found["steps"]] == [True, False, True]
    assert "the square of its length" in millrace("tokenizer", "inspect", path).out


def test_a_pattern_whose_time_is_linear(millrace: Millrace, tmp_path: Path):
    path = tokenizer_file(tmp_path, r"[^\r\n\p{L}]?\p{L}+|\s*[\r\n]+|\s+(?!\S)|\s+|[^\s\p{L}]+")
    steps = millrace("tokenizer", "inspect", path, "--json").object("tokenizer")["steps"]
    assert all(step["linear"] for step in steps)
    assert "the square of its length" not in millrace("tokenizer", "inspect", path).out


def test_a_file_that_only_oniguruma_cuts_says_so(millrace: Millrace, tmp_path: Path):
    text = millrace("tokenizer", "inspect", tokenizer_file(tmp_path, r"(?<=ab)b|\w+")).out
    assert "Split, Oniguruma: (?<=ab)b|" in text
    assert "way: byte-level" in text


def test_what_is_no_tokenizer(millrace: Millrace, tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "tokenizer.json" in millrace.fails("tokenizer", "inspect", tmp_path / "tokenizer.json")
    assert "missing.json" in millrace.fails("tokenizer", "inspect", tmp_path / "missing.json")
