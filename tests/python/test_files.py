# SPDX-License-Identifier: Apache-2.0
"""cp, sync, ls, rm, verify, open and the fsspec adapter."""

from __future__ import annotations

import io
import os
import pickle
import random
from pathlib import Path

import pyarrow.parquet
import pytest

import millrace as mr

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("millrace.fsspec")  # registers the protocol


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "src"
    (root / "d").mkdir(parents=True)
    (root / "a").write_bytes(b"1")
    (root / "d" / "b").write_bytes(os.urandom(100_000))
    return root


def names(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and ".millrace" not in p.parts)


def test_sync_and_verify(tree: Path, tmp_path: Path):
    dst = tmp_path / "dst"
    report = mr.sync(str(tree), str(dst))
    assert report["copied_files"] == 2 and report["moved_bytes"] + report["server_bytes"] == 100_001
    assert mr.sync(str(tree), str(dst))["moved_bytes"] == 0
    assert mr.verify(str(tree), str(dst))["ok"]
    (dst / "extra").write_bytes(b"x")
    assert mr.sync(str(tree), str(dst), delete=True, dry_run=True)["deleted_files"] == 1
    with pytest.raises(ValueError, match="max-delete"):
        mr.sync(str(tree), str(dst), delete=True, max_delete=0)
    assert mr.sync(str(tree), str(dst), delete=True, filters=["- extra"])["deleted_files"] == 0
    assert mr.sync(str(tree), str(dst), delete=True)["deleted_files"] == 1
    (dst / "a").write_bytes(b"2")
    assert mr.verify(str(tree), str(dst))["differences"] == ["a"]
    with pytest.raises(FileNotFoundError):
        mr.sync(str(tmp_path / "nope"), str(dst))
    with pytest.raises(ValueError, match="compare"):
        mr.sync(str(tree), str(dst), compare="guess")


def test_names_that_are_not_utf8(tree: Path, tmp_path: Path):
    odd = os.fsdecode(b"bad-\xff.bin")
    (tree / odd).write_bytes(b"odd")
    paths = [entry["path"] for entry in mr.ls(tree)]
    assert odd in [os.path.basename(path) for path in paths]
    (tmp_path / "empty").mkdir()
    assert odd in mr.verify(tree, tmp_path / "empty")["differences"]
    mr.cp(tree / odd, tmp_path / "copy")
    with mr.open(str(tree / odd)) as file:
        assert file.read() == b"odd"
    assert (tmp_path / "copy").read_bytes() == b"odd"
    with pytest.raises(FileNotFoundError, match=r"gone-\\xff"):
        mr.cp(tree / os.fsdecode(b"gone-\xff"), tmp_path / "copy")


def test_stage(tree: Path, tmp_path: Path):
    report = mr.stage(str(tree), str(tmp_path / "to"), sample="a", sample_dir=str(tmp_path / "kept"))
    assert report["objects"] == report["copied_files"] and report["sample"] == "a"
    assert (tmp_path / "kept" / "a").read_bytes() == (tree / "a").read_bytes()
    with pytest.raises(FileNotFoundError):
        mr.stage(str(tree), str(tmp_path / "to"), sample="none")


def test_cp_ls_rm(tree: Path, tmp_path: Path):
    with pytest.raises(ValueError, match=r"at least 16\.8 MB of memory"):
        mr.cp(str(tree / "a"), str(tmp_path / "there") + "/", memory_bytes=1 << 20)
    assert mr.cp(str(tree / "a"), str(tmp_path / "there") + "/", memory_bytes=1 << 28)["copied_files"] == 1
    assert mr.cp(str(tree), str(tmp_path / "there"), recursive=True, filters=["- a"])["copied_files"] == 1
    assert names(tmp_path / "there") == ["a", "d/b"]
    listed = list(mr.ls(str(tree)))
    assert [(each["path"], each["type"], each["size"]) for each in listed] == [("a", "object", 1), ("d/", "folder", 0)]
    assert listed[0]["modified"] == pytest.approx((tree / "a").stat().st_mtime)
    assert [each["path"] for each in mr.ls(str(tree), recursive=True)] == ["a", "d/b"]
    with pytest.raises(ValueError, match="recursive"):
        mr.rm(str(tree))
    assert mr.rm(str(tree), recursive=True, filters=["- d/"]) == {"objects": 1, "bytes": 1}
    assert names(tree) == ["d/b"]


def test_open_is_a_file(tmp_path: Path, seeded: random.Random):
    path = tmp_path / "object"
    path.write_bytes(seeded.randbytes(3_000_000))
    with mr.open(str(path)) as ours, open(path, "rb") as theirs:
        assert ours.raw.size == 3_000_000 and ours.raw.version
        for _ in range(300):
            if seeded.random() < 0.3:
                place = seeded.randrange(3_100_000)
                assert ours.seek(place) == theirs.seek(place)
            count = seeded.choice([0, 1, 100, 70_000, 500_000])
            assert ours.read(count) == theirs.read(count)
            assert ours.tell() == theirs.tell()
        assert ours.seek(-5, io.SEEK_END) == theirs.seek(-5, io.SEEK_END)
        assert ours.read() == theirs.read()
        with pytest.raises(ValueError):
            ours.seek(-1)
    with pytest.raises(ValueError, match="closed"):
        ours.read()


def test_read_ranges(tmp_path: Path):
    content = os.urandom(300_000)
    (tmp_path / "object").write_bytes(content)
    with mr.open(str(tmp_path / "object"), buffering=0) as raw:
        raw.seek(7)
        offsets = [random.randrange(290_000) for _ in range(200)] + [0, 300_000, 5]
        sizes = [random.randrange(10_000) for _ in range(200)] + [300_000, 0, 1]
        assert raw.read_ranges(offsets, sizes) == [content[a : a + n] for a, n in zip(offsets, sizes, strict=True)]
        assert raw.tell() == 7 and raw.read_ranges([], []) == []
        for offset, size in [(-1, 1), (0, -1), (299_999, 2), (2**62, 2**62)]:
            with pytest.raises(ValueError, match="read_ranges"):
                raw.read_ranges([offset], [size])
        with pytest.raises(ValueError, match="as many"):
            raw.read_ranges([1, 2], [1])
        assert raw.read() == content[7:] and raw.read(1) == b""
        (tmp_path / "object").write_bytes(b"another")
        with pytest.raises(mr.CorruptionError):
            raw.read_ranges([0, 10], [10, 10])
    with pytest.raises(ValueError, match="closed"):
        raw.read_ranges([0], [1])


def test_open_text_and_errors(tmp_path: Path):
    path = tmp_path / "lines"
    path.write_text("eins\nzwei\ndrei", encoding="utf-8")
    with mr.open(str(path), "r") as lines:
        assert list(lines) == ["eins\n", "zwei\n", "drei"]
    raw = mr.open(str(path), buffering=0)
    raw.seek(5)
    again = pickle.loads(pickle.dumps(raw))
    assert again.read(4) == b"zwei"
    with pytest.raises(FileNotFoundError):
        mr.open(str(tmp_path / "nope"))
    with pytest.raises(ValueError):
        mr.open(str(tmp_path))
    with pytest.raises(ValueError, match="mode"):
        mr.open(str(path), "wb")


def test_a_change_while_reading_is_an_error(tmp_path: Path):
    path = tmp_path / "object"
    path.write_bytes(b"x" * 1000)
    raw = mr.open(str(path), buffering=0)
    raw.read(10)
    path.write_bytes(b"y" * 999)
    with pytest.raises(mr.CorruptionError):
        raw.read(10)


def test_fsspec_reads_writes_and_lists(tree: Path, tmp_path: Path):
    fs = fsspec.filesystem("millrace")
    assert sorted(fs.find(str(tree))) == [f"{tree}/a", f"{tree}/d/b"]
    assert fs.info(f"{tree}/a")["size"] == 1 and fs.isdir(f"{tree}/d") and fs.isfile(f"{tree}/d/b")
    assert not fs.exists(f"{tree}/nope")
    assert fs.glob(f"{tree}/*") == [f"{tree}/a", f"{tree}/d"]
    with fsspec.open(f"millrace://{tree}/d/b") as file:
        assert file.read() == (tree / "d" / "b").read_bytes()
    assert fs.cat_file(f"{tree}/d/b", 10, 20) == (tree / "d" / "b").read_bytes()[10:20]
    one, two = f"{tree}/a", f"millrace://{tree}/d/b"
    ranges = fs.cat_ranges([two, one, two, "/nope"], [5, None, -3, 0], [9, None, None, 1])
    whole = (tree / "d" / "b").read_bytes()
    assert ranges[:3] == [whole[5:9], b"1", whole[-3:]]
    assert isinstance(ranges[3], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(["/nope"], 0, 1, on_error="raise")
    with fs.open(f"{tmp_path}/new/object", "wb") as file:
        file.write(b"hello ")
        assert not (tmp_path / "new" / "object").exists()
        file.write(b"world")
    assert fs.cat(f"{tmp_path}/new/object") == b"hello world"
    fs.cp_file(f"{tmp_path}/new/object", f"{tmp_path}/new/copy")
    fs.rm(f"{tmp_path}/new/object")
    assert names(tmp_path / "new") == ["copy"]
    assert fs._parent("millrace://s3://b/a/c") == "s3://b/a" and fs._strip_protocol("millrace://s3://b/") == "s3://b"


def test_fsspec_leaves_nothing_of_a_write_that_failed(tmp_path: Path):
    fs = fsspec.filesystem("millrace")
    with pytest.raises(RuntimeError), fs.open(f"{tmp_path}/object", "wb") as file:
        file.write(b"half")
        raise RuntimeError("no")
    forgotten = fs.open(f"{tmp_path}/object", "wb")
    forgotten.write(b"half")
    del forgotten
    assert os.listdir(tmp_path) == []


def test_pyarrow_uses_it(tmp_path: Path):
    table = pyarrow.table({"x": list(range(1000)), "text": [str(i) for i in range(1000)]})
    fs = fsspec.filesystem("millrace")
    pyarrow.parquet.write_table(table, f"{tmp_path}/t/table.parquet", filesystem=fs)
    assert pyarrow.parquet.read_table(f"{tmp_path}/t/table.parquet", filesystem=fs).equals(table)
    with mr.open(f"{tmp_path}/t/table.parquet") as file:
        assert pyarrow.parquet.read_table(file).equals(table)
