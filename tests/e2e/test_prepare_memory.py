# SPDX-License-Identifier: Apache-2.0
"""The memory of `prepare` and `shards check` does not depend on the number of documents."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import Millrace, measured

DOCUMENTS = 1_500_000  # 28 bytes each in the index, 20 in Megatron's


def peak_mib(millrace: Millrace, *words: object) -> float:
    return measured([millrace.binary, *words, "--quiet"], millrace.cwd, dict(os.environ))[1] / 1024


@pytest.mark.parametrize("output", ["megatron", "tokens"])
def test_memory_is_that_of_a_few_documents(millrace: Millrace, tokenizer: Path, tmp_path: Path, output: str):
    (tmp_path / "few.txt").write_text("ab\n" * 1000)
    (tmp_path / "many.txt").write_text("ab\n" * DOCUMENTS)

    def prepare(*inputs: str, out: str) -> float:
        words = ("--tokenizer", tokenizer, "--out", out, "--format", output, "--eos", "<|end|>", "--threads", 1)
        return peak_mib(millrace, "prepare", *inputs, *words)

    few = prepare("few.txt", out="few")
    assert prepare("many.txt", out="many") < few + 24
    assert prepare("many.txt", out="many") < few + 24, "the second time, when it reads what is there"
    assert peak_mib(millrace, "shards", "check", "many") < few + 24
    listed = millrace("shards", "ls", "many", "--json").object("total")
    assert (listed["samples"], listed["tokens"]) == (DOCUMENTS, 3 * DOCUMENTS)


@pytest.mark.parametrize("threads", [1, 2])
def test_large_documents_keep_the_promise(millrace: Millrace, tokenizer: Path, seeded, tmp_path: Path, threads: int):
    document = bytes(seeded.choices(b"abcdefghij0123456789+/", k=1 << 20)) * 8
    (tmp_path / "large.txt").write_bytes((document + b"\n") * 6)
    words = ("--tokenizer", tokenizer, "--out", "out", "--threads", threads)
    assert peak_mib(millrace, "prepare", "large.txt", *words) < 256 + 64 * threads


def test_the_ledger_is_not_kept_in_memory(millrace: Millrace, tokenizer: Path, tmp_path: Path):
    (tmp_path / "few.jsonl").write_text('{"text": "ab"}\n')
    (tmp_path / "bad.jsonl").write_text('{"text": 1}\n' * 300_000 + '{"text": "ab"}\n')
    words = ("--tokenizer", tokenizer, "--documents", "jsonl", "--on-error", "skip", "--max-errors", 10**9)
    few = peak_mib(millrace, "prepare", "few.jsonl", "--out", "few", *words)
    assert peak_mib(millrace, "prepare", "bad.jsonl", "--out", "bad", *words) < few + 24
    ledger = tmp_path / "bad" / "00000.tar.rejected.jsonl"
    assert ledger.stat().st_size > 26 << 20
    assert ledger.read_bytes().count(b"\n") == 300_000
