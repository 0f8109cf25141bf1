# SPDX-License-Identifier: Apache-2.0
"""What prepare and split read: packed text, Parquet as pyarrow writes it, lists; and the handling of bad
documents."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
from pathlib import Path

import pytest
from conftest import Millrace, visible_files

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(["the", "café", "thorn", "naïve", "x", "中文", "\t"]) for _ in range(count))


def texts(rng: random.Random, count: int) -> list[str]:
    return [f"{i} " + words(rng, rng.randrange(0, 60)) for i in range(count)]


def prepared(millrace: Millrace, *inputs: object, out: str = "shards", flags: tuple = ()) -> list[str]:
    millrace("prepare", *inputs, "--tokenizer", millrace.cwd / "tokenizer.json", "--out", out, *flags)
    return [sample["text"] for sample in millrace("shards", "cat", out, "--json").objects("sample")]


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])
def test_packed_text_is_the_same_text(millrace: Millrace, tokenizer: Path, tmp_path: Path, seeded, pack):
    documents = texts(seeded, 3000)
    lines = "".join(f"{text}\n" for text in documents).encode()
    (tmp_path / "plain.txt").write_bytes(lines)
    # Two members back to back, as `cat a.gz b.gz` makes; no name says that it is packed.
    (tmp_path / "packed").write_bytes(pack(lines[:10_000]) + pack(lines[10_000:]))
    flags = ("--shard-size", "64KB")
    assert prepared(millrace, "plain.txt", out="a", flags=flags) == documents
    assert prepared(millrace, "packed", out="b", flags=flags) == documents
    assert [p.name for p in Path(tmp_path / "a").glob("*.tar")] == [p.name for p in Path(tmp_path / "b").glob("*.tar")]
    for shard in (tmp_path / "a").glob("*.tar"):
        assert shard.read_bytes() == (tmp_path / "b" / shard.name).read_bytes()
    # A damaged shard is written again from its place in the packed file, byte for byte.
    before = visible_files(tmp_path / "b")
    (tmp_path / "b" / "00000-00003.tar").write_bytes(b"broken")
    report = millrace("prepare", "packed", "--tokenizer", tokenizer, "--out", "b", *flags, "--json").object("prepare")
    assert report["shards_reused"] == report["shards"] - 1
    assert visible_files(tmp_path / "b") == before
    (tmp_path / "cut").write_bytes(pack(lines)[:-20])
    assert "cut: its" in millrace.fails("prepare", "cut", "--tokenizer", tokenizer, "--out", "c")


def test_parquet_rows_are_documents(millrace: Millrace, tokenizer: Path, tmp_path: Path, seeded):
    documents = texts(seeded, 2500)
    rows: list[str | None] = list(documents)
    for i in sorted(seeded.sample(range(2500), 40)):
        rows[i] = seeded.choice([None, "", " \n\t"])
    kept = [row for row in rows if row is not None and row.strip()]
    columns = {
        "text": pa.array(rows, pa.string()),
        "large": pa.array(rows, pa.large_string()),
        "bytes": pa.array([r if r is None else r.encode() for r in rows], pa.binary()),
        "dictionary": pa.array(rows, pa.string()).dictionary_encode(),
        "meta": pa.array([{"n": i, "body": {"en": row}} for i, row in enumerate(rows)]),
        "number": pa.array(range(len(rows))),
        "list": pa.array([[row] for row in rows]),
    }
    table = pa.table(columns)
    for i, compression in enumerate(["snappy", "zstd", "gzip", "none", "brotli"]):
        path = tmp_path / f"{compression}.parquet"
        pq.write_table(table, path, compression=compression, row_group_size=700, data_page_size=4000)
        column = ["text", "large", "bytes", "dictionary", "meta.body.en"][i]
        flags = ("--text-field", column, "--shard-size", "100KB")
        assert prepared(millrace, path.name, out=compression, flags=flags) == kept, column
        before = visible_files(tmp_path / compression)
        (tmp_path / compression / "00000-00002.tar").unlink()
        assert prepared(millrace, path.name, out=compression, flags=flags) == kept
        assert visible_files(tmp_path / compression) == before
    base = ("prepare", "zstd.parquet", "--tokenizer", tokenizer, "--out", "bad")
    assert "there are text, large, bytes" in millrace.fails(*base, "--text-field", "nope")
    assert "holds no strings" in millrace.fails(*base, "--text-field", "number")
    assert "holds no strings" in millrace.fails(*base, "--text-field", "list.list.element")
    assert "is not cut by paragraph" in millrace.fails(*base, "--documents", "paragraph")
    pq.write_table(table.select(["text"]), tmp_path / "sums.parquet", write_page_checksum=True, compression="none")
    whole = (tmp_path / "sums.parquet").read_bytes()
    for at in [whole.index(kept[50].encode()), whole.index(kept[1200].encode()), len(whole) - 7]:
        damaged = bytearray(whole)
        damaged[at] ^= 0x20
        (tmp_path / "damaged.parquet").write_bytes(damaged)
        assert "damaged.parquet" in millrace.fails("prepare", "damaged.parquet", "--tokenizer", tokenizer, "--out", "d")


def test_parquet_without_its_library_says_what_to_install(binary: str, tokenizer: Path, tmp_path: Path):
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    alone = tmp_path / "bin" / "millrace"
    alone.parent.mkdir()
    alone.write_bytes(Path(binary).read_bytes())
    alone.chmod(0o755)
    command = [alone, "prepare", "a.parquet", "--tokenizer", tokenizer, "--out", "shards"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 1 and "pip install 'millrace-io[parquet]'" in ran.stderr, ran


def test_split_reads_what_prepare_reads(millrace: Millrace, tokenizer: Path, tmp_path: Path, seeded):
    documents = texts(seeded, 4000)
    lines = "".join(f"{text}\n" for text in documents).encode()
    (tmp_path / "a.gz").write_bytes(gzip.compress(lines))
    pq.write_table(pa.table({"body": documents}), tmp_path / "a.parquet", row_group_size=300)

    ran = millrace("split", "a.gz", "--out", "text", "--parts", 5, "--json")
    parts = [tmp_path / "text" / f"part-{i:05}.txt" for i in range(5)]
    assert b"".join(part.read_bytes() for part in parts) == lines
    assert all(0.5 < part["bytes"] / (len(lines) / 5) < 1.5 for part in ran.objects("split_part"))

    millrace("split", "a.parquet", "--text-field", "body", "--out", "rows", "--parts", 3)
    parts = sorted((tmp_path / "rows").glob("part-*.jsonl"))
    assert [json.loads(line)["text"] for part in parts for line in part.open()] == documents
    (tmp_path / "b.txt").write_text("b\n")
    assert "split apart" in millrace.fails("split", "a.parquet", "b.txt", "--out", "x", "--parts", 3)


def test_validation_is_chosen_by_the_text(millrace: Millrace, tmp_path: Path, seeded):
    documents = texts(seeded, 5000)
    documents += documents[:500]  # equal texts must land on one side
    (tmp_path / "a.txt").write_text("\n".join(documents[:3000]) + "\n")
    (tmp_path / "b.txt").write_text("\n".join(documents[3000:]))
    split = ("split", "a.txt", "b.txt", "--validation", 0.1, "--parts")
    millrace(*split, 3, "--out", "out")
    parts = [part.read_text().splitlines() for part in sorted((tmp_path / "out").glob("part-*.txt"))]
    train = [line for part in parts for line in part]
    validation = (tmp_path / "out" / "validation.txt").read_text().splitlines()
    assert sorted(train + validation) == sorted(documents)
    assert not set(train) & set(validation)
    assert 400 < len(validation) < 700
    # Neither the parts nor the order of files change the choice; a seed does.
    millrace("split", "b.txt", "a.txt", "--validation", 0.1, "--parts", 1, "--out", "again")
    assert sorted((tmp_path / "again" / "validation.txt").read_text().splitlines()) == sorted(validation)
    millrace(*split, 1, "--seed", 1, "--out", "other")
    other = (tmp_path / "other" / "validation.txt").read_text().splitlines()
    assert 400 < len(other) < 700 and set(other) != set(validation)
    assert "another split" in millrace.fails("split", "a.txt", "--parts", 3, "--out", "out")


def test_a_list_of_inputs(millrace: Millrace, raw: Path, tokenizer: Path, tmp_path: Path):
    (tmp_path / "list.txt").write_text("raw/b.txt\r\n\nraw/{a,a}.txt\n")
    assert prepared(millrace, "@list.txt", out="a") == prepared(millrace, "raw", out="b")
    assert "nope.txt" in millrace.fails("prepare", "@nope.txt", "--tokenizer", tokenizer, "--out", "c")
    (tmp_path / "empty.txt").write_text("\n")
    assert "the list is empty" in millrace.fails("prepare", "@empty.txt", "--tokenizer", tokenizer, "--out", "c")


def jsonl_with_trouble(rng: random.Random, count: int) -> tuple[bytes, list[str], list[tuple[int, int]]]:
    """The file, the good texts in it, and (line, offset) of each bad document."""
    data, good, bad = b"", [], []
    for line in range(1, count + 1):
        kind = rng.randrange(12)
        text = f"{line} {words(rng, rng.randrange(30))}"
        row = json.dumps({"meta": {"text": text}}).encode()
        if kind == 0:
            row = rng.choice([b"{", b"[]", b'{"meta": 1}', b'{"meta": {"text": 5}}', b"nonsense"])
        elif kind == 1:
            row = json.dumps({"meta": {"text": "long " * 2000}}).encode()
        elif kind == 2:
            row = b'{"meta": {"text": "\xff"}}'
        if kind <= 2:
            bad.append((line, len(data)))
        else:
            good.append(text)
        data += row + rng.choice([b"\n", b"\r\n"])
    return data, good, bad


@pytest.mark.parametrize("name", ["sh{1,2}", "sh[1]", "a*"])
def test_names_that_look_like_patterns(millrace: Millrace, tokenizer: Path, tmp_path: Path, name: str):
    (tmp_path / f"{name}.txt").write_text("one\ntwo\n")
    assert prepared(millrace, f"{name}.txt", out=name) == ["one", "two"]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).mkdir()
    (tmp_path / f"in/{name}/x.txt").write_text("three\n")
    assert prepared(millrace, f"in/{name}", out="below") == ["three"]


def test_bad_documents_go_to_the_ledger(millrace: Millrace, tokenizer: Path, tmp_path: Path, seeded):
    data, good, bad = jsonl_with_trouble(seeded, 1500)
    (tmp_path / "a.jsonl").write_bytes(data)
    base = ["prepare", "a.jsonl", "--tokenizer", tokenizer, "--documents", "jsonl", "--text-field", "meta.text"]
    base += ["--strict", "--max-document-bytes", "5000"]
    skip = [*base, "--on-error", "skip", "--out", "skip", "--shard-size", "200KB"]

    first = millrace.fails(*base, "--out", "fail")
    assert f"line {bad[0][0]}, offset {bad[0][1]}" in first or f"line {bad[0][0]}," in first
    assert "more than 10 documents" in millrace.fails(*skip[:-4], "--out", "few", "--max-errors", 10)

    report = millrace(*skip, "--json").object("prepare")
    assert (report["documents"], report["rejected"]) == (len(good), len(bad))
    assert [s["text"] for s in millrace("shards", "cat", "skip", "--json").objects("sample")] == good
    ledgers = sorted((tmp_path / "skip").glob("*.rejected.jsonl"))
    entries = [json.loads(line) for ledger in ledgers for line in ledger.open()]
    assert [(entry["line"], entry["offset"]) for entry in entries] == bad
    assert all(entry["input"].endswith("a.jsonl") and entry["reason"] for entry in entries)

    # Threads, chunks and repairs do not show in it.
    before = visible_files(tmp_path / "skip")
    ledgers[1].write_text("edited")
    report = millrace(*skip, "--json", "--threads", 5).object("prepare")
    assert report["shards_reused"] == report["shards"] - 1 and report["rejected"] == len(bad)
    assert visible_files(tmp_path / "skip") == before

    (tmp_path / "b.jsonl").write_text("{\n[\n")
    nothing = ["prepare", "b.jsonl", *base[2:], "--on-error", "skip", "--out", "nothing", "--json"]
    for _ in range(2):
        report = millrace(*nothing, status=1).object("prepare")  # a dataset without a document is not finished
        assert (report["documents"], report["rejected"]) == (0, 2)


def test_duplicates_and_lengths(millrace: Millrace, tokenizer: Path, tmp_path: Path, seeded):
    pool = texts(seeded, 200)
    documents = [seeded.choice(pool) for _ in range(1500)]
    (tmp_path / "a.txt").write_text("\n".join(documents) + "\n")
    first_seen = list(dict.fromkeys(documents))
    base = ["prepare", "a.txt", "--tokenizer", tokenizer, "--shard-size", "20KB", "--dedup"]
    report = millrace(*base, "--out", "d", "--json").object("prepare")
    cat = [s["text"] for s in millrace("shards", "cat", "d", "--json").objects("sample")]
    assert cat == first_seen and report["duplicates"] == 1500 - len(first_seen)

    # Missing files are written again as they were: kept texts are remembered, and no text counts as its own
    # duplicate.
    before = visible_files(tmp_path / "d")
    names = sorted(name for name in before if name.endswith(".tar"))
    assert len(names) > 5
    for _ in range(6):
        for name in seeded.sample(names, seeded.randrange(1, len(names))):
            (tmp_path / "d" / name).unlink()
        report = millrace(*base, "--out", "d", "--json").object("prepare")
        assert report["duplicates"] == 1500 - len(first_seen)
        assert visible_files(tmp_path / "d") == before
    limits = ["--min-bytes", "50", "--max-bytes", "200", "--min-tokens", "60", "--max-tokens", "150", "--out", "f"]
    report = millrace(*base, *limits, "--json").object("prepare")
    cat = millrace("shards", "cat", "f", "--json").objects("sample")
    wanted = [t for t in first_seen if 50 <= len(t.encode()) <= 200]
    assert [s["text"] for s in cat] == [t for t in wanted if 60 <= len(t.encode()) - t.count("th") <= 150]
    assert report["filtered"] + report["duplicates"] + report["documents"] == 1500
    many = "\n".join(f"document {i}" for i in range(5000))
    (tmp_path / "b.txt").write_text(many)
    said = millrace.fails(
        "prepare", "b.txt", "--tokenizer", tokenizer, "--out", "m", "--dedup", "--dedup-memory", "64KB"
    )
    assert "different documents" in said


def test_split_balances_packed_and_plain_inputs(millrace: Millrace, seeded, tmp_path: Path):
    """By text: a packed file is as much work as the text in it."""
    line = " ".join(seeded.choice(["the", "thorn", "cat", "inn"]) for _ in range(12))
    text = "".join(f"{i} {line}\n" for i in range(30_000))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "b.txt").write_text(text)
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(text.encode()))
    assert (tmp_path / "a.txt.gz").stat().st_size < len(text) / 5
    parts = millrace("split", "a.txt.gz", "b.txt", "c.txt.gz", "--parts", 6, "--out", "raw", "--json").objects(
        "split_part"
    )
    assert len(parts) == 6 and sum(part["documents"] for part in parts) == 90_000
    sizes = [part["bytes"] for part in parts]
    assert max(sizes) < 1.25 * min(sizes), sizes
    joined = "".join(path.read_text() for path in sorted((tmp_path / "raw").iterdir()))
    assert joined == 3 * text
