# SPDX-License-Identifier: Apache-2.0
"""The shards that are not one sample a tar member, each read as the tools read it that it is made for, and by the
Loader."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from conftest import Millrace, expected_ids, tokenizer_json, visible_files

import millrace as mr
from millrace import chat

END = 257  # "<|end|>" of the test tokenizer


@pytest.fixture
def documents(seeded, tmp_path: Path) -> list[str]:
    lines = [f"{i} " + "the thorn " * seeded.randrange(0, 40) + "x" for i in range(700)]
    (tmp_path / "raw.txt").write_text("\n".join(lines) + "\n")
    return lines


def read_megatron(path: Path) -> list[list[int]]:
    """By the rules of Megatron-LM's IndexedDataset."""
    index = path.with_suffix(".idx").read_bytes()
    magic, version, code, sequences, bounds = struct.unpack("<9sQBQQ", index[:34])
    assert (magic, version) == (b"MMIDIDX\x00\x00", 1)
    dtype = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}[code]
    lengths = np.frombuffer(index, np.int32, sequences, 34)
    pointers = np.frombuffer(index, np.int64, sequences, 34 + 4 * sequences)
    documents = np.frombuffer(index, np.int64, bounds, 34 + 12 * sequences)
    assert len(index) == 34 + 12 * sequences + 8 * bounds
    assert documents[0] == 0 and documents[-1] == sequences
    data = path.read_bytes()
    assert sum(lengths) * np.dtype(dtype).itemsize == len(data)
    return [np.frombuffer(data, dtype, n, at).tolist() for n, at in zip(lengths, pointers, strict=True)]


def read_llm_c(path: Path) -> list[int]:
    """As llm.c's data loader checks and reads it."""
    data = path.read_bytes()
    magic, version, tokens = struct.unpack("<3i", data[:12])
    dtype = {(20240520, 1): np.uint16, (20240801, 7): np.uint32}[magic, version]
    ids = np.frombuffer(data, dtype, offset=1024)
    assert len(ids) == tokens
    return ids.tolist()


def loaded(shards: Path) -> list[list[int]]:
    loader = mr.Loader(str(shards), batch_size=1, seq_len=4096, shuffle=False, epochs=1, collate="pad")
    out = []
    with loader:
        for batch in loader:
            for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
                out.append(row[mask.astype(bool)].tolist())
    return out


def test_megatron(millrace: Millrace, documents, tokenizer: Path, tmp_path: Path):
    flags = ("--format", "megatron", "--eos", "<|end|>", "--shard-size", "50KB")
    millrace("prepare", "raw.txt", "--tokenizer", tokenizer, "--out", "out", *flags)
    shards = sorted((tmp_path / "out").glob("*.bin"))
    assert len(shards) > 1
    expected = [[*expected_ids(text), END] for text in documents]
    assert [ids for shard in shards for ids in read_megatron(shard)] == expected
    assert loaded(tmp_path / "out") == expected
    millrace("shards", "check", "out")
    before = visible_files(tmp_path / "out")
    idx = shards[1].with_suffix(".idx")
    good = idx.read_bytes()
    for damaged in (good[:60] + bytes([good[60] ^ 1]) + good[61:], good[:-1], good + b"x"):
        idx.write_bytes(damaged)
        report = millrace("shards", "check", "out", status=3)
        assert f"{idx.name}: from byte" in report.out and "1 damaged" in report.out
    idx.unlink()
    assert f"{idx.name}: missing" in millrace("shards", "check", "out", status=3).out
    idx.write_bytes(good)
    shards[0].with_suffix(".idx").write_bytes(b"damaged")
    report = millrace("prepare", "raw.txt", "--tokenizer", tokenizer, "--out", "out", *flags, "--json")
    assert report.object("prepare")["shards_reused"] == len(shards) - 1
    assert visible_files(tmp_path / "out") == before


def test_a_choice_that_a_format_does_not_leave_is_refused(millrace: Millrace, documents, tokenizer: Path):
    prepare = ("prepare", "raw.txt", "--tokenizer", tokenizer, "--out", "out", "--ids", "npy")
    for more in (("--format", "megatron"), ("--format", "tokens"), ("--block", 8)):
        assert "--ids" in millrace.fails(*prepare, *more, status=2)
    with pytest.raises(ValueError, match="own form of ids"):
        mr.prepare(["raw.txt"], tokenizer=str(tokenizer), out="out", format="tokens", ids="npy")


def test_token_files(millrace: Millrace, documents, tokenizer: Path, tmp_path: Path):
    flags = ("--format", "tokens", "--bos", "<|end|>", "--shard-size", "40KB")
    millrace("prepare", "raw.txt", "--tokenizer", tokenizer, "--out", "out", *flags)
    shards = sorted((tmp_path / "out").glob("*.bin"))
    assert len(shards) > 1
    expected = [[END, *expected_ids(text)] for text in documents]
    assert [i for shard in shards for i in read_llm_c(shard)] == [i for ids in expected for i in ids]
    assert loaded(tmp_path / "out") == expected
    millrace("shards", "check", "out")
    head = bytearray(shards[0].read_bytes())
    head[9] ^= 1
    shards[0].write_bytes(head)
    assert "damaged outside" in millrace("shards", "check", "out", status=3).out
    no_end = millrace("prepare", "raw.txt", "--tokenizer", tokenizer, "--out", "o2", "--format", "tokens")
    assert "nothing between them" in no_end.err


def test_blocks_of_documents(millrace: Millrace, documents, tokenizer: Path, tmp_path: Path):
    wds = pytest.importorskip("webdataset")
    flags = ("--block", 64, "--shard-size", "50KB")
    millrace("prepare", "raw.txt", "--tokenizer", tokenizer, "--out", "out", *flags)
    expected = [expected_ids(text) for text in documents]
    shards = sorted(map(str, (tmp_path / "out").glob("*.tar")))
    assert len(shards) > 1
    found = []
    for block in wds.WebDataset(shards, shardshuffle=False).decode():
        ids, lengths = block["block.ids.npy"], block["block.lengths.npy"]
        assert ids.dtype == np.uint16 and len(lengths) <= 64 and sum(lengths) == len(ids)
        found += [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
    assert found == expected
    assert loaded(tmp_path / "out") == expected
    millrace("shards", "check", "out")
    one = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.tar"))
    assert one < 1.15 * 2 * sum(map(len, expected))


def test_raw_ids_in_a_member(millrace: Millrace, documents, tokenizer: Path, tmp_path: Path):
    millrace("prepare", "raw.txt", "--tokenizer", tokenizer, "--out", "out", "--ids", "raw", "--no-text")
    expected = [expected_ids(text) for text in documents]
    cat = millrace("shards", "cat", "out", "--json").objects("sample")
    assert [sample["ids"] for sample in cat] == expected
    assert set(cat[0]["fields"]) == {"token_ids.u16"}
    assert loaded(tmp_path / "out") == expected
    before = (tmp_path / "out" / "00000.tar.index").read_bytes()
    (tmp_path / "out" / "manifest.json").unlink()
    (tmp_path / "out" / "part-00000-of-00001.json").unlink()
    (tmp_path / "out" / "00000.tar.index").unlink()
    millrace("shards", "index", "out/00000.tar")  # the ids are found, and counted the same
    assert len((tmp_path / "out" / "00000.tar.index").read_bytes()) < len(before)
    assert loaded(tmp_path / "out" / "00000.tar") == expected


def test_ends_that_cannot_be(millrace: Millrace, documents, tokenizer: Path):
    base = ("prepare", "raw.txt", "--tokenizer", tokenizer, "--out", "out")
    assert "no such token" in millrace.fails(*base, "--eos", "</s>")
    assert "no members" in millrace.fails(*base, "--format", "megatron", "--block", 5)
    millrace(*base, "--bos", "t", "--format", "tokens")
    assert 'bos: "t" there, "th" here' in millrace.fails(*base, "--bos", "th", "--format", "tokens")


def chat_tokenizer(path: Path) -> mr.Tokenizer:
    """The test tokenizer with ChatML's two tokens."""
    root = json.loads(tokenizer_json())
    end = root["added_tokens"][0]
    root["added_tokens"] += [end | {"id": 258 + i, "content": f"<|im_{x}|>"} for i, x in enumerate(["start", "end"])]
    path.write_text(json.dumps(root))
    return mr.Tokenizer.from_file(str(path))


def conversation(rng, turns: int) -> list[dict]:
    roles = ["system"] * rng.randrange(2) + ["user", "assistant"] * turns
    return [{"role": role, "content": " ".join(rng.choices(["the", "café", "thorn", "x"], k=5))} for role in roles]


def test_conversations_are_learned_where_the_assistant_speaks(millrace: Millrace, tmp_path: Path, seeded):
    template = chat.NamedChatTemplate("chatml")
    tokenizer = chat_tokenizer(tmp_path / "tokenizer.json")
    conversations = [conversation(seeded, seeded.randrange(1, 4)) for _ in range(300)]
    lines = [json.dumps({"id": i, "messages": messages}) for i, messages in enumerate(conversations)]
    lines[100] = json.dumps({"messages": [*conversations[100][:-1], {"role": "nobody", "content": ""}]})
    (tmp_path / "chat.jsonl").write_text("\n".join(lines) + "\n")
    base = ("prepare", "chat.jsonl", "--tokenizer", tmp_path / "tokenizer.json", "--chat", "chatml")
    assert "line 101" in millrace.fails(*base, "--out", "fail")
    report = millrace(*base, "--out", "out", "--on-error", "skip", "--json").object("prepare")
    assert report["documents"] == 299 and report["rejected"] == 1

    loader = mr.Loader(str(tmp_path / "out"), batch_size=1, seq_len=4096, shuffle=False, epochs=1, collate="pad")
    with loader:
        batches = [{name: array.copy() for name, array in batch.items()} for batch in loader]
    kept = conversations[:100] + conversations[101:]
    assert len(batches) == len(kept)
    for batch, messages in zip(batches, kept, strict=True):
        ids, mask = template.encode(messages, tokenizer)
        row = batch["input_ids"][0][batch["attention_mask"][0].astype(bool)]
        labels = batch["labels"][0][: len(row)]
        assert row.tolist() == ids.tolist() and 0 < mask.sum() < len(mask)
        assert np.array_equal(labels, np.where(mask == 1, ids.astype(np.int64), -100))
    said = millrace.fails(*base, "--out", "o", "--format", "megatron")
    assert "mask of what is learned" in said
    (tmp_path / "trick.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "x"}]}'
    )
    trick = ("prepare", "trick.jsonl", *base[2:], "--out", "trick")
    assert "line 1" in millrace.fails(*trick, "--refuse-control-text")
