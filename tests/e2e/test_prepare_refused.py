# SPDX-License-Identifier: Apache-2.0
"""prepare and split before they begin: refused inputs, data that would be lost, the search for inputs, dry runs."""

from __future__ import annotations

import bz2
import io
import lzma
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import LINES, Millrace, visible_files

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
mr = pytest.importorskip("millrace")

TEXT = "".join(f"{line}\n" for line in LINES if line).encode() * 20


def cut_parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": ["some text"] * 1000}), file)
    return file.getvalue()[:-100]


def in_zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", TEXT)
    return file.getvalue()


def in_tar(mode: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        member = tarfile.TarInfo("a.txt")
        member.size = len(TEXT)
        archive.addfile(member, io.BytesIO(TEXT))
    return file.getvalue()


NO_TEXT = {
    "cut.parquet": (cut_parquet, "it is cut"),
    "a.xz": (lambda: lzma.compress(TEXT), "xz -d"),
    "a.bz2": (lambda: bz2.compress(TEXT), "bzip2 -d"),
    "a.zip": (in_zip, "unzip"),
    "a.tar": (lambda: in_tar("w"), "tar -xf"),
    "a.tar.gz": (lambda: in_tar("w:gz"), "tar -xf"),
    "utf16.txt": (lambda: ("text " * 1000).encode("utf-16"), "iconv -f UTF-16"),
    "utf16le.txt": (lambda: ("text " * 1000).encode("utf-16-le"), "iconv -f UTF-16"),
    "latin.txt": (lambda: ("Füße über Öl\n" * 1000).encode("latin-1"), "iconv -f WINDOWS-1252"),
    "a.jsonl": (lambda: b'{"id": 1, "body": "a text"}\n' * 10, "its fields: id, body"),
    "a.json": (lambda: b'[\n  {"id": 1, "body": "a text"}\n]\n', "jq -c"),
}


@pytest.mark.parametrize("name", NO_TEXT)
def test_what_is_no_text_is_refused(millrace: Millrace, tokenizer: Path, tmp_path: Path, name: str):
    content, way_out = NO_TEXT[name]
    (tmp_path / name).write_bytes(content())
    (tmp_path / "0.txt").write_bytes(TEXT)
    inputs = ["0.txt", name]
    for line in (
        millrace.fails("prepare", *inputs, "--tokenizer", tokenizer, "--out", "out"),
        millrace.fails("prepare", *inputs, "--tokenizer", tokenizer, "--out", "out", "--dry-run"),
        millrace.fails("split", *inputs, "--out", "out", "--parts", 2),
    ):
        assert name in line and way_out in line
    paths = [str(tmp_path / each) for each in inputs]
    with pytest.raises((ValueError, mr.CorruptionError), match=name):
        mr.prepare(paths, tokenizer=str(tokenizer), out=str(tmp_path / "out"))
    with pytest.raises((ValueError, mr.CorruptionError), match=name):
        mr.split(paths, out=str(tmp_path / "out"), parts=2)
    assert not (tmp_path / "out").exists()


def test_what_looks_like_no_text_may_be_meant(millrace: Millrace, tokenizer: Path, tmp_path: Path):
    (tmp_path / "latin.txt").write_bytes(NO_TEXT["latin.txt"][0]())
    (tmp_path / "a.jsonl").write_bytes(NO_TEXT["a.jsonl"][0]())
    flags = ("--json-as-text", "--max-invalid", 1)
    ran = millrace("prepare", "latin.txt", "a.jsonl", "--tokenizer", tokenizer, "--out", "out", *flags, "--json")
    assert ran.object("prepare")["documents"] == 1010
    millrace("split", "latin.txt", "a.jsonl", "--out", "parts", "--parts", 2, *flags)
    paths = [str(tmp_path / "latin.txt"), str(tmp_path / "a.jsonl")]
    meant = {"json_as_text": True, "max_invalid": 1}
    out = str(tmp_path / "python")
    assert mr.prepare(paths, tokenizer=str(tokenizer), out=out, **meant)["documents"] == 1010
    assert len(mr.split(paths, out=str(tmp_path / "python-parts"), parts=2, **meant)) == 2


def test_what_is_finished_is_replaced_only_when_told_to(millrace: Millrace, raw: Path, tokenizer: Path, tmp_path: Path):
    other = tmp_path / "other.txt"
    other.write_text("another text\n")
    prepare = ("--tokenizer", tokenizer, "--out", "out")
    split = ("--out", "parts", "--parts", 2)
    millrace("prepare", raw, *prepare)
    millrace("split", raw, *split)
    before = visible_files(tmp_path / "out"), visible_files(tmp_path / "parts")
    assert "other.txt is new" in millrace.fails("prepare", other, *prepare)
    assert "--replace" in millrace.fails("split", other, *split)
    with pytest.raises(FileExistsError, match="replace"):
        mr.prepare([str(other)], tokenizer=str(tokenizer), out=str(tmp_path / "out"))
    with pytest.raises(FileExistsError, match="replace"):
        mr.split([str(other)], out=str(tmp_path / "parts"), parts=2)
    assert (visible_files(tmp_path / "out"), visible_files(tmp_path / "parts")) == before

    assert millrace("prepare", other, *prepare, "--replace", "--json").object("prepare")["documents"] == 1
    millrace("split", other, *split, "--replace")
    assert (tmp_path / "parts" / "part-00000.txt").read_text() == other.read_text()
    other.write_text("a third text\n")
    assert mr.prepare([str(other)], tokenizer=str(tokenizer), out=str(tmp_path / "out"), replace=True)["documents"] == 1
    mr.split([str(other)], out=str(tmp_path / "parts"), parts=2, replace=True)
    assert (tmp_path / "parts" / "part-00000.txt").read_text() == other.read_text()


def test_a_copy_of_the_inputs_is_the_same_inputs(millrace: Millrace, raw: Path, tokenizer: Path, tmp_path: Path):
    millrace("prepare", raw, "--tokenizer", tokenizer, "--out", "out")
    shutil.copytree(raw, tmp_path / "copy")  # keeps times
    for spelled in ("copy", "./copy/", raw, f"file://{raw}"):
        ran = millrace("prepare", spelled, "--tokenizer", tokenizer, "--out", "out", "--json").object("prepare")
        assert ran["shards_reused"] == ran["shards"] == 1
    millrace("prepare", "copy", "--tokenizer", tokenizer, "--out", "again")
    assert visible_files(tmp_path / "again") == visible_files(tmp_path / "out")


def test_folders_are_gone_through(millrace: Millrace, tokenizer: Path, tmp_path: Path):
    """As Spark and Hive leave them."""
    for month in (1, 2):
        folder = tmp_path / "table" / "year=2024" / f"month={month}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"text": [f"month {month}"] * 3}), folder / "part-0.parquet")
    (tmp_path / "table" / "_SUCCESS").touch()
    ran = millrace("prepare", "table", "--tokenizer", tokenizer, "--out", "out", "--json")
    assert ran.object("prepare")["documents"] == 6 and "_SUCCESS" in ran.err
    ran = millrace("prepare", "table/**/*.parquet", "--tokenizer", tokenizer, "--out", "stars", "--json")
    assert ran.object("prepare")["documents"] == 6


def test_standard_input(millrace: Millrace, tokenizer: Path, tmp_path: Path):
    def run(*args: object, data: bytes) -> subprocess.CompletedProcess:
        command = [millrace.binary, *map(str, args)]
        return subprocess.run(command, cwd=tmp_path, env=millrace.env, input=data, capture_output=True, timeout=60)

    prepare = ("prepare", "-", "--tokenizer", tokenizer, "--out")
    for data in (TEXT, bz2.compress(TEXT)):
        done = run(*prepare, "out" if data is TEXT else "packed", data=data)
        assert (done.returncode == 0) == (data is TEXT), done
    (tmp_path / "a.txt").write_bytes(TEXT)
    millrace("prepare", "a.txt", "--tokenizer", tokenizer, "--out", "file")
    assert (tmp_path / "out" / "00000.tar").read_bytes() == (tmp_path / "file" / "00000.tar").read_bytes()
    # The same bytes again are the same input.
    assert run(*prepare, "out", data=TEXT).returncode == 0
    assert b"inputs" in run(*prepare, "out", data=TEXT + b"more\n").stderr
    assert b"--task" in run(*prepare, "tasks", "--task", "0/2", data=TEXT).stderr or not (tmp_path / "tasks").exists()
    assert run("split", "-", "--out", "parts", "--parts", 2, data=TEXT).returncode == 0
    joined = b"".join(part.read_bytes() for part in sorted((tmp_path / "parts").iterdir()))
    assert joined == TEXT


def test_a_dry_run_foretells(millrace: Millrace, tokenizer: Path, tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"a short line\n" * 500_000)
    prepare = ("prepare", "a.txt", "--tokenizer", tokenizer, "--out")
    dry = millrace(*prepare, "out", "--dry-run", "--json").object("prepare")
    assert 0 < dry["sampled_bytes"] < dry["input_bytes"] / 1.5
    assert abs(dry["expected_documents"] / 500_000 - 1) < 0.01
    assert abs(dry["expected_tokens"] / (500_000 * 12) - 1) < 0.01
    told = millrace(*prepare, "out", "--dry-run")
    assert "times the input" in told.out and "--block" in told.out and not (tmp_path / "out").exists()
    python = mr.prepare([str(tmp_path / "a.txt")], tokenizer=str(tokenizer), out=str(tmp_path / "out"), dry_run=True)
    assert python["expected_documents"] == dry["expected_documents"]
    assert not (tmp_path / "out").exists()

    ran = millrace(*prepare, "blocks", "--block", 1000, "--json")
    assert "times their text" not in ran.err


def test_shards_by_pattern_and_what_is_none(millrace: Millrace, raw: Path, tokenizer: Path, tmp_path: Path):
    for task in (0, 1):
        millrace("prepare", raw, "--tokenizer", tokenizer, "--out", "out", "--task", f"{task}/2")
    everything = millrace("shards", "ls", "out", "--json").object("total")["samples"]
    for pattern in ("out/*.tar", "out/*", "out/0000[01].tar"):
        assert millrace("shards", "ls", pattern, "--json").object("total")["samples"] == everything
        assert sum(1 for _ in mr.Loader(str(tmp_path / pattern), batch_size=1, seq_len=64, epochs=1)) == everything
    assert "no file matches" in millrace.fails("shards", "ls", "out/*.gone")
    assert "no shard matches" in millrace.fails("shards", "ls", "out/*.json")
    assert "it is a file" in millrace.fails("shards", "ls", tokenizer)
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "a.tar.gz").write_bytes(in_tar("w:gz"))
    for packed in ("packed/a.tar.gz", "packed", "packed/*"):
        assert "a.tar.gz: it is packed" in millrace.fails("shards", "ls", packed)
