# SPDX-License-Identifier: Apache-2.0
"""A text that is empty or only white space is no document, in every format, and is counted."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from conftest import Millrace

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

# What str.isspace() says: of ASCII and of Unicode. None has an end of line of `--documents line`.
BLANKS = ["", " ", "\t \t", "\u00a0", "\u3000\u2003", "\x1c", "\x0b\x0c", " \u2028 "]


def corpus(rng: random.Random) -> list[str]:
    texts = [
        " ".join(rng.choice(["the", "café", "thorn", "\u00a0x"]) for _ in range(rng.randrange(1, 9)))
        for _ in range(400)
    ]
    return [rng.choice(BLANKS) if rng.random() < 0.3 else text for text in texts]


def write_all(folder: Path, texts: list[str]) -> dict[str, tuple[str, ...]]:
    """The same corpus in each format, and the flags that read it."""
    (folder / "a.txt").write_bytes("".join(f"{text}\n" for text in texts).encode())
    # Empty lines between objects hold no object.
    (folder / "a.jsonl").write_text("\n\n".join(json.dumps({"text": text}) for text in texts) + "\n \n")
    pq.write_table(pa.table({"text": texts}), folder / "a.parquet")
    (folder / "files").mkdir()
    for i, text in enumerate(texts):
        (folder / "files" / f"{i:04}").write_bytes(text.encode())
    return {
        "a.txt": (),
        "a.jsonl": ("--documents", "jsonl"),
        "a.parquet": (),
        "files": ("--documents", "file"),
    }


def ids_of(millrace: Millrace, source: str, out: str, *flags: object) -> tuple[list[list[int]], dict]:
    run = ["prepare", source, "--tokenizer", millrace.cwd / "tokenizer.json", "--out", out, *flags, "--json"]
    report = millrace(*run).object("prepare")
    return [sample["ids"] for sample in millrace("shards", "cat", out, "--json").objects("sample")], report


@pytest.mark.parametrize("keep", [False, True], ids=["left out", "kept"])
def test_one_corpus_gives_the_same_ids_in_every_format(
    millrace: Millrace, tokenizer: Path, tmp_path: Path, seeded: random.Random, keep: bool
):
    texts = corpus(seeded)
    blank = sum(not text.strip() for text in texts)
    assert blank > 50
    found = {}
    for source, flags in write_all(tmp_path, texts).items():
        ids, report = ids_of(millrace, source, f"out-{source}", *flags, *(["--keep-empty"] if keep else []))
        assert (len(ids), report["empty"]) == ((400, 0) if keep else (400 - blank, blank)), source
        found[source] = ids
    assert all(ids == found["a.txt"] for ids in found.values())


def test_the_count_follows_from_the_inputs(millrace: Millrace, tokenizer: Path, tmp_path: Path, seeded: random.Random):
    """However many shards there are, and whatever of them was written again."""
    texts = corpus(seeded)
    blank = sum(not text.strip() for text in texts)
    for source, flags in write_all(tmp_path, texts).items():
        out = tmp_path / f"out-{source}"
        flags = (*flags, "--shard-size", "20KB")
        assert ids_of(millrace, source, out.name, *flags)[1]["empty"] == blank
        before = {path.name: path.read_bytes() for path in out.iterdir()}
        shards = sorted(path.name for path in out.glob("*.tar"))
        assert len(shards) > 5
        for name in seeded.sample(shards, 3):
            (out / name).unlink()
        assert ids_of(millrace, source, out.name, *flags)[1]["empty"] == blank
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
        assert json.loads((out / "manifest.json").read_text())["empty"] == blank


def test_only_blanks(millrace: Millrace, tokenizer: Path, tmp_path: Path):
    (tmp_path / "a.txt").write_text("\n \n\t\n")
    refused = millrace("prepare", "a.txt", "--tokenizer", tokenizer, "--out", "out", status=1)
    assert "3 without text" in refused.out and "nothing to train on" in refused.err
    ids, report = ids_of(millrace, "a.txt", "kept", "--keep-empty")
    assert (len(ids), report["empty"]) == (3, 0)


def test_strip_and_blanks(millrace: Millrace, tokenizer: Path, tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(" a \n \u00a0\nb\n".encode())
    cat = millrace("prepare", "a.txt", "--tokenizer", tokenizer, "--out", "out", "--strip", "--json").object("prepare")
    assert (cat["documents"], cat["empty"]) == (2, 1)
    texts = [sample["text"] for sample in millrace("shards", "cat", "out", "--json").objects("sample")]
    assert texts == ["a", "b"]


def test_split_leaves_out_rows_of_tables(millrace: Millrace, tokenizer: Path, tmp_path: Path):
    texts = ["a", "", " ", "b", None]
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), tmp_path / "a.parquet")
    report = millrace("split", "a.parquet", "--out", "parts", "--parts", 2, "--json").object("split")
    assert (report["documents"], report["empty"]) == (2, 3)
    kept = millrace("split", "a.parquet", "--out", "kept", "--parts", 2, "--keep-empty", "--json").object("split")
    assert (kept["documents"], kept["empty"]) == (5, 0)
    flags = ("--documents", "jsonl", "--keep-empty")
    assert len(ids_of(millrace, "kept/part-*.jsonl", "shards", *flags)[0]) == 5
    # Text stays as it is.
    (tmp_path / "a.txt").write_text("a\n\n \nb\n")
    report = millrace("split", "a.txt", "--out", "text", "--parts", 1, "--json").object("split")
    assert (report["documents"], report["empty"]) == (2, 0)
    assert (tmp_path / "text" / "part-00000.txt").read_text() == "a\n\n \nb\n"
