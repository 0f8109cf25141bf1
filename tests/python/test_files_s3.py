# SPDX-License-Identifier: Apache-2.0
"""open and the fsspec adapter on s3://, alone and below pandas, pyarrow and datasets, against a real S3 server."""

from __future__ import annotations

import io
import json
import os
import random
import sys
from pathlib import Path

import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest

import millrace as mr

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("millrace.fsspec")  # registers the protocol

MIB = 1 << 20
PART = 8 * MIB


@pytest.fixture(autouse=True)
def cloud(s3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def fs():
    return fsspec.filesystem("millrace")


def test_reads_are_those_of_a_file(s3, bucket: str, seeded: random.Random) -> None:
    """Small and large ones, across the borders of parts, through buffers of every size."""
    content = seeded.randbytes(2 * PART + 3 * MIB + 7)
    s3.client.put_object(Bucket=bucket, Key="object", Body=content)
    borders = [0, 256 << 10, MIB, PART, 2 * PART, len(content)]
    for buffering in (0, 1, 1000, 256 << 10, 3 * MIB):
        theirs = io.BytesIO(content)
        with mr.open(f"s3://{bucket}/object", buffering=buffering) as ours:
            for _ in range(40):
                if seeded.random() < 0.6:
                    place = max(0, seeded.choice(borders) + seeded.randrange(-2000, 2000))
                    assert ours.seek(place) == theirs.seek(place)
                how, count = seeded.choice(["read", "readinto"]), seeded.choice([0, 1, 100, 4000, 300_000, 2 * MIB])
                if how == "read":
                    assert ours.read(count) == theirs.read(count)
                else:
                    mine, other = bytearray(count), bytearray(count)
                    assert ours.readinto(mine) == theirs.readinto(other) and mine == other
                assert ours.tell() == theirs.tell()
            assert ours.seek(-9, io.SEEK_END) == theirs.seek(-9, io.SEEK_END)
            assert ours.seek(-PART, io.SEEK_CUR) == theirs.seek(-PART, io.SEEK_CUR)
            assert ours.read() == theirs.read()
            assert ours.read() == b"" == ours.read(5)


def test_reading_through_from_the_beginning(s3, bucket: str, seeded: random.Random) -> None:
    """What is read ahead is what comes next, and what is skipped does not come."""
    content = seeded.randbytes(3 * PART + 1)
    s3.client.put_object(Bucket=bucket, Key="object", Body=content)
    with mr.open(f"s3://{bucket}/object", buffering=64 << 10) as file:
        got = bytearray()
        while piece := file.read(seeded.choice([1, 999, 65_536, 500_000])):
            got += piece
        assert got == content
        file.seek(5)
        for begin in range(5, len(content), 2 * MIB):
            assert file.read(100) == content[begin : begin + 100]
            file.seek(2 * MIB - 100, io.SEEK_CUR)


def test_past_the_end_is_nothing(s3, bucket: str) -> None:
    s3.client.put_object(Bucket=bucket, Key="short", Body=b"12345")
    s3.client.put_object(Bucket=bucket, Key="empty", Body=b"")
    for buffering in (0, 1 << 10):
        with mr.open(f"s3://{bucket}/short", buffering=buffering) as file:
            assert file.read(100) == b"12345"
            assert file.read(1) == b"" and file.readinto(bytearray(3)) == 0
            assert file.seek(1000) == 1000 and file.read() == b"" and file.tell() == 1000
            assert file.seek(4) == 4 and file.read(9) == b"5"
            with pytest.raises(ValueError):
                file.seek(-1)
        with mr.open(f"s3://{bucket}/empty", buffering=buffering) as file:
            assert file.seek(0, io.SEEK_END) == 0 and file.read() == b"" == file.read(1)
    with pytest.raises(FileNotFoundError):
        mr.open(f"s3://{bucket}/nope")


def test_lines(s3, bucket: str, seeded: random.Random) -> None:
    """Whose characters and ends lie on the borders of buffers."""
    lines = ["x" * seeded.randrange(200) + seeded.choice(["", "é", "你好", "😀"]) + "\n" for _ in range(20_000)]
    text = "".join(lines) + "the last, without an end"
    s3.client.put_object(Bucket=bucket, Key="text", Body=text.encode())
    s3.client.put_object(Bucket=bucket, Key="latin", Body="naïve\r\ncafé".encode("latin-1"))
    url = f"s3://{bucket}/text"
    for buffering in (7, 256 << 10):
        with mr.open(url, "r", buffering=buffering) as file:
            assert file.readline() == lines[0]
            assert [*file] == [*lines[1:], "the last, without an end"]
            assert file.read() == ""
            file.seek(0)
            assert file.read() == text
    with mr.open(url) as file:
        assert file.readline() == lines[0].encode()
        assert file.readlines() == [each.encode() for each in [*lines[1:], "the last, without an end"]]
    with mr.open(f"s3://{bucket}/latin", "r", encoding="latin-1") as file:
        assert file.read() == "naïve\ncafé"


@pytest.mark.parametrize("size", [0, 1, PART, 2 * PART + 5])
def test_what_is_written_shows_when_it_is_closed(s3, bucket: str, fs, seeded: random.Random, size: int) -> None:
    content = seeded.randbytes(size)
    with fs.open(f"s3://{bucket}/new/object", "wb") as file:
        at = 0
        while at < size:
            piece = content[at : at + seeded.choice([1, 1000, MIB + 1, 5 * MIB])]
            assert file.write(piece) == len(piece)
            at += len(piece)
            assert file.tell() == at
        assert "Contents" not in s3.client.list_objects_v2(Bucket=bucket)
    assert s3.client.get_object(Bucket=bucket, Key="new/object")["Body"].read() == content
    assert fs.cat(f"s3://{bucket}/new/object") == content
    with fsspec.open(f"millrace://s3://{bucket}/new/object", "rb") as file:
        assert file.read() == content


def test_a_write_that_failed_leaves_nothing_and_the_old_object(s3, bucket: str, fs) -> None:
    url = f"s3://{bucket}/object"
    fs.pipe(url, b"old")
    for size in (10, 2 * PART + 5):
        with pytest.raises(RuntimeError), fs.open(url, "wb") as file:
            file.write(bytes(size))
            raise RuntimeError("no")
        forgotten = fs.open(url, "wb")
        forgotten.write(bytes(size))
        del forgotten
    assert fs.cat(url) == b"old"
    assert [each["Key"] for each in s3.client.list_objects_v2(Bucket=bucket)["Contents"]] == ["object"]
    assert "Uploads" not in s3.client.list_multipart_uploads(Bucket=bucket)


def test_text_is_written_and_folders_are_listed(s3, bucket: str, fs) -> None:
    url = f"s3://{bucket}"
    with fsspec.open(f"millrace://{url}/d/a b+%.txt", "w", encoding="utf-8", newline="") as file:
        file.write("é\n" * 1000)
    assert s3.client.get_object(Bucket=bucket, Key="d/a b+%.txt")["Body"].read() == "é\n".encode() * 1000
    fs.pipe({f"{url}/d/e/{i}": b"%d" % i for i in range(3)})
    assert fs.ls(f"{url}/d", detail=False) == [f"{url}/d/a b+%.txt", f"{url}/d/e"]
    assert fs.find(f"{url}/d") == [f"{url}/d/a b+%.txt", *(f"{url}/d/e/{i}" for i in range(3))]
    assert fs.glob(f"{url}/d/e/[01]") == [f"{url}/d/e/0", f"{url}/d/e/1"]
    assert fs.info(f"{url}/d/e/1")["size"] == 1 and fs.isdir(f"{url}/d/e") and not fs.exists(f"{url}/d/e/3")
    assert fs.cat(f"{url}/d/e/*") == {f"{url}/d/e/{i}": b"%d" % i for i in range(3)}
    fs.mv(f"{url}/d/e/0", f"{url}/moved")
    fs.rm(f"{url}/d", recursive=True)
    assert fs.find(url) == [f"{url}/moved"] and fs.cat(f"{url}/moved") == b"0"


def test_pandas_reads_and_writes(s3, bucket: str, seeded: random.Random) -> None:
    pandas = pytest.importorskip("pandas")
    url = f"millrace://s3://{bucket}"
    frame = pandas.DataFrame(
        {
            "id": range(50_000),
            "value": [seeded.random() for _ in range(50_000)],
            "text": [seeded.choice(["", "naïve", "a,b", 'a "quoted" one', "two\nlines"]) for _ in range(50_000)],
        }
    )
    frame.to_csv(f"{url}/frame.csv", index=False)
    there = s3.client.get_object(Bucket=bucket, Key="frame.csv")["Body"].read()
    assert there.decode() == frame.to_csv(index=False)
    pandas.testing.assert_frame_equal(pandas.read_csv(f"{url}/frame.csv", keep_default_na=False), frame)
    pieces = pandas.read_csv(f"{url}/frame.csv", keep_default_na=False, chunksize=7_000)
    pandas.testing.assert_frame_equal(pandas.concat(pieces), frame)
    frame.to_csv(f"{url}/frame.csv.gz", index=False)
    pandas.testing.assert_frame_equal(pandas.read_csv(f"{url}/frame.csv.gz", keep_default_na=False), frame)
    frame.to_parquet(f"{url}/frame.parquet", row_group_size=5_000)
    pandas.testing.assert_frame_equal(pandas.read_parquet(f"{url}/frame.parquet"), frame)
    some = pandas.read_parquet(f"{url}/frame.parquet", columns=["id"], filters=[("id", ">", 49_990)])
    assert list(some["id"]) == list(range(49_991, 50_000))
    frame.to_json(f"{url}/frame.jsonl", orient="records", lines=True)
    assert list(pandas.read_json(f"{url}/frame.jsonl", lines=True)["id"]) == list(frame["id"])
    with pytest.raises(FileNotFoundError):
        pandas.read_csv(f"{url}/nope.csv")


def test_pyarrow_datasets(s3, bucket: str, fs, seeded: random.Random) -> None:
    table = pyarrow.table(
        {
            "id": list(range(100_000)),
            "kind": [f"k{i % 3}" for i in range(100_000)],
            "value": [seeded.random() for _ in range(100_000)],
        }
    )
    url = f"s3://{bucket}/set"
    pyarrow.dataset.write_dataset(
        table, url, filesystem=fs, format="parquet", partitioning=["kind"], partitioning_flavor="hive",
        max_rows_per_group=4_000, max_rows_per_file=12_000,
    )  # fmt: skip
    keys = [each["Key"] for each in s3.client.list_objects_v2(Bucket=bucket)["Contents"]]
    assert len(keys) == 9 and {key.split("/")[1] for key in keys} == {"kind=k0", "kind=k1", "kind=k2"}
    found = pyarrow.dataset.dataset(url, filesystem=fs, format="parquet", partitioning="hive")
    assert found.count_rows() == table.num_rows
    assert found.to_table(columns=table.column_names).sort_by("id").equals(table)
    some = found.to_table(
        columns=["id"], filter=(pyarrow.dataset.field("kind") == "k1") & (pyarrow.dataset.field("id") < 9)
    )
    assert sorted(some["id"].to_pylist()) == [1, 4, 7]
    read = pyarrow.parquet.read_table(url, filesystem=fs, columns=["value", "id"])
    assert read.sort_by("id").select(["id", "value"]).equals(table.select(["id", "value"]))
    with mr.open(f"s3://{bucket}/{keys[0]}") as file:
        assert pyarrow.parquet.ParquetFile(file).read_row_group(0)["id"].to_pylist()[0] % 3 == 0


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)  # nothing is asked of the hub
    return datasets


@pytest.mark.parametrize("streaming", [False, True])
def test_datasets_loads_it(
    s3, bucket: str, fs, datasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "s3", None)  # for other tests it is as it was
    mr.fsspec.use_for_s3()
    rows = [{"id": i, "text": f"line {i} é\n"} for i in range(3_000)]
    for part in range(3):
        mine = rows[part * 1000 : part * 1000 + 1000]
        body = "".join(json.dumps(row) + "\n" for row in mine)
        s3.client.put_object(Bucket=bucket, Key=f"json/{part}.jsonl", Body=body.encode())
        table = pyarrow.Table.from_pylist(mine)
        pyarrow.parquet.write_table(table, f"s3://{bucket}/parquet/{part}.parquet", filesystem=fs)
    url = f"s3://{bucket}"
    for form, files in (
        ("json", [f"{url}/json/{part}.jsonl" for part in range(3)]),
        ("json", f"{url}/json/*.jsonl"),
        ("parquet", {"train": f"{url}/parquet/*.parquet"}),
    ):
        loaded = datasets.load_dataset(
            form, data_files=files, split="train", streaming=streaming, cache_dir=str(tmp_path / "cache")
        )
        assert [*loaded] == rows


def test_datasets_saves_to_it(s3, bucket: str, datasets) -> None:
    rows = [{"id": i, "text": f"line {i}"} for i in range(1_000)]
    url = f"millrace://s3://{bucket}/saved"
    datasets.Dataset.from_list(rows).save_to_disk(url, num_shards=3)
    keys = {each["Key"] for each in s3.client.list_objects_v2(Bucket=bucket)["Contents"]}
    assert {f"saved/data-0000{i}-of-00003.arrow" for i in range(3)} | {"saved/dataset_info.json"} <= keys
    assert [*datasets.load_from_disk(url)] == rows
