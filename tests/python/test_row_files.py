# SPDX-License-Identifier: Apache-2.0
"""Files that rows come from: their content is part of a state, they do not change in use, one process of a node looks at
them, and those of another machine are read by ranges."""

import io
import itertools
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from millrace._rows import base, jsonl, objects, tables
from millrace._rows.arrays import Arrays
from millrace._rows.jsonl import JsonLines
from millrace._rows.tables import Arrow, Parquet
from test_rows import plain, write_mds

import millrace as mr
from millrace import _core

Write = Callable[[pathlib.Path, int], pathlib.Path]


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Nothing is known of these files from before."""
    folder = tmp_path / "node"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("MILLRACE_INDEX_FOLDER", str(folder))
    return folder


def values(seed: int) -> dict[str, np.ndarray]:
    return {"n": np.arange(40) + 100 * seed, "x": np.full((40, 2), 0.5 + seed, np.float32)}


def write_jsonl(folder: pathlib.Path, seed: int) -> pathlib.Path:
    lines = [json.dumps({"n": int(n), "pad": "p"}) for n in values(seed)["n"] + 1000]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return folder / "rows.jsonl"


def as_table(seed: int):
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.table({"n": values(seed)["n"], "x": [list(row) for row in values(seed)["x"]]})


def write_parquet(folder: pathlib.Path, seed: int) -> pathlib.Path:
    rows = as_table(seed)
    from pyarrow import parquet

    parquet.write_table(rows, folder / "rows.parquet", row_group_size=11, compression="none", use_dictionary=False)
    return folder / "rows.parquet"


def write_arrow(folder: pathlib.Path, seed: int) -> pathlib.Path:
    rows = as_table(seed)
    import pyarrow

    with pyarrow.OSFile(str(folder / "rows.arrow"), "wb") as file, pyarrow.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=9)
    return folder / "rows.arrow"


def write_npy(folder: pathlib.Path, seed: int) -> pathlib.Path:
    np.save(folder / "rows.npy", values(seed)["x"])
    return folder / "rows.npy"


def write_npz(folder: pathlib.Path, seed: int) -> pathlib.Path:
    np.savez(folder / "rows.npz", **values(seed))
    return folder / "rows.npz"


def write_mds_folder(folder: pathlib.Path, seed: int) -> pathlib.Path:
    shutil.rmtree(folder / "mds", ignore_errors=True)
    write_mds(folder / "mds")
    if seed:  # one more blank in a JSON value that nobody reads
        index = folder / "mds" / "index.json"
        index.write_text(index.read_text() + " ")
    return folder / "mds"


WRITERS = [write_jsonl, write_parquet, write_arrow, write_npy, write_npz, write_mds_folder]


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_a_state_belongs_to_the_content(write: Write, tmp_path):
    path = write(tmp_path, 0)
    with mr.SampleLoader(path, batch_size=4, seed=1) as loader:
        next(loader)
        state, expected = loader.state_dict(), next(loader)["__key__"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with mr.SampleLoader(write(elsewhere, 0), batch_size=4, seed=1) as loader:  # another copy, written at another time
        loader.load_state_dict(state)
        assert [key.rpartition("/")[2] for key in next(loader)["__key__"]] == [
            key.rpartition("/")[2] for key in expected
        ]
    size = path.stat().st_size
    write(tmp_path, 1)
    assert path.stat().st_size == size or path.is_dir()
    with mr.SampleLoader(path, batch_size=4, seed=1) as loader, pytest.raises(ValueError, match="state"):
        loader.load_state_dict(state)
        next(loader)


@pytest.mark.parametrize("write", WRITERS[:2], ids=lambda write: write.__name__)
def test_a_file_that_changes_in_use_is_no_other_file(write: Write, tmp_path, monkeypatch):
    monkeypatch.setattr(objects, "_MOST_OPEN", 1)
    (tmp_path / "second").mkdir()
    paths = [str(write(tmp_path, 0)), str(write(tmp_path / "second", 0))]
    with mr.SampleLoader(paths, batch_size=4, shuffle=False, memory_bytes=64 << 20) as loader:
        next(loader)
        held = loader._arguments[0]["rows"][0]
        held.objects.reader(paths[0])
        os.rename(write(tmp_path / "node", 1), paths[1])
        with pytest.raises(mr.CorruptionError, match="replaced while it was being read"):
            held.objects.reader(paths[1])


@pytest.mark.parametrize("write", WRITERS[:5], ids=lambda write: write.__name__)
def test_one_process_of_a_node_looks(write: Write, tmp_path, own_folder):
    path = write(tmp_path, 0)
    script = f"""
import sys, millrace as mr
from millrace import _core
from millrace._rows import base
looks = []
each = base.Files._each
def counted(self, look):
    if getattr(look, "__name__", "") != "version":
        looks.append(look)
    return each(self, look)
base.Files._each = counted
with mr.SampleLoader({str(path)!r}, batch_size=4, shuffle=False) as loader:
    next(loader)
print(len(looks))
"""
    ranks = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    looked = [int(rank.communicate(timeout=100)[0]) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    assert sorted(looked) == [0, 0, 1]
    kept = [name for name in own_folder.iterdir() if name.suffix == ".rows"]
    assert len(kept) == 1
    kept[0].write_bytes(kept[0].read_bytes()[:-1] + b"?")

    def look() -> int:
        ran = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
        return int(ran.stdout)

    assert [look(), look()] == [1, 0]  # what is damaged is made again
    write(tmp_path, 1)
    assert look() == 1


def test_lines_are_those_that_python_finds(monkeypatch):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    for round_ in range(60):
        monkeypatch.setattr(jsonl, "_CHUNK", chance.choice([1, 2, 7, 64, 8 << 20]))
        data = bytes(chance.choice(b'\n\n \t\r\v\fab{"}') for _ in range(chance.randrange(200)))
        name = f"mem://lines-{seed}/{round_}"
        writer = _core.ObjectWriter(name)
        writer.append(data)
        writer.commit()
        expected, at = [], 0
        for line in io.BytesIO(data):
            if line.strip():
                expected.append([at, at + len(line)])
            at += len(line)
        assert jsonl.find_lines(_core.ObjectReader(name))[0].tolist() == expected, data


def put(path: pathlib.Path, folder: str) -> str:
    """The file where no map of memory reaches it."""
    url = f"mem://{folder}/{path.name}"
    writer = _core.ObjectWriter(url)
    writer.append(path.read_bytes())
    writer.commit()
    return url


def all_rows(source: base.Files) -> list[dict]:
    rows = []
    for shard, (_, count) in enumerate(source.shards()):
        cuts = sorted({0, count, *(random.randrange(count + 1) for _ in range(4))})
        for begin, end in itertools.pairwise(cuts):
            rows += source.read(shard, begin, end)
    return [{k: plain(v) for k, v in row.items() if k != "__key__"} for row in rows]


def test_arrow_of_another_machine_is_read_by_batches(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    seed = random.randrange(1 << 30)
    print("seed", seed)
    random.seed(seed)
    rows = pyarrow.table({
        "n": list(range(100)), "text": [f"t{n}" * (n % 7) for n in range(100)],
        "list": [[float(n)] * (n % 4) for n in range(100)], "maybe": [None if n % 3 else n for n in range(100)],
    })  # fmt: skip
    options = [
        {},
        {"compression": "zstd"},
        {"use_legacy_format": True},
        {"metadata_version": pyarrow.ipc.MetadataVersion.V4},
    ]
    for number, option in enumerate(options):
        for make in (pyarrow.ipc.new_stream, pyarrow.ipc.new_file):
            path = tmp_path / f"{number}-{make.__name__}.arrow"
            with make(str(path), rows.schema, options=pyarrow.ipc.IpcWriteOptions(**option)) as writer:
                writer.write_table(rows, max_chunksize=random.randint(1, 40))
            source = Arrow([put(path, f"arrow-{seed}")])
            assert source.shards()[0][1] == 100
            assert all_rows(source) == rows.to_pylist(), path
            chosen = Arrow([put(path, f"arrow-{seed}")], ["text"])
            assert all_rows(chosen) == rows.select(["text"]).to_pylist()
            assert source.identity() == chosen.identity()  # of what is there, not of what is asked for
            with pytest.raises(ValueError, match="no column 'none'"):
                all_rows(Arrow([put(path, f"arrow-{seed}")], ["none"]))
    data = path.read_bytes()
    for cut in (0, 5, 30, len(data) // 2, len(data) // 2 + 8):
        (tmp_path / "cut.arrow").write_bytes(data[:cut])
        with pytest.raises(mr.CorruptionError, match=r"cut\.arrow"):
            Arrow([put(tmp_path / "cut.arrow", f"cut-{seed}-{cut}")]).shards()
    words = pyarrow.table({"word": pyarrow.array(["a", "b"]).dictionary_encode()})
    with pyarrow.ipc.new_stream(str(tmp_path / "words.arrow"), words.schema) as writer:
        writer.write_table(words)
    with pytest.raises(ValueError, match="copy it there first"):
        Arrow([put(tmp_path / "words.arrow", f"words-{seed}")]).shards()


def test_only_what_is_asked_for_is_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = pyarrow.table({"n": list(range(1000)), "pad": [os.urandom(4000).hex() for _ in range(1000)]})
    with pyarrow.ipc.new_stream(str(tmp_path / "a.arrow"), rows.schema) as writer:
        writer.write_table(rows, max_chunksize=20)
    parquet.write_table(rows, tmp_path / "a.parquet", row_group_size=20, compression="none")
    np.save(tmp_path / "a.npy", np.frombuffer(os.urandom(8_000_000), np.uint8).reshape(1000, 8000))

    class Counted:
        def __init__(self, inner):
            self.inner, self.size, self.version, self.read_bytes = inner, inner.size, inner.version, 0

        def read(self, offset, size):
            data = self.inner.read(offset, size)
            self.read_bytes += len(data)
            return data

        def read_into(self, offset, out):
            count = self.inner.read_into(offset, out)
            self.read_bytes += count
            return count

        def read_ranges(self, offsets, sizes):
            self.read_bytes += sum(sizes)
            return self.inner.read_ranges(offsets, sizes)

    for kind, name in ((Arrow, "a.arrow"), (Parquet, "a.parquet"), (Arrays, "a.npy")):
        url = put(tmp_path / name, f"asked-{tmp_path.name}")
        source = kind([url])
        counted = Counted(_core.ObjectReader(url))
        source.objects._open[url] = counted
        source.objects._versions[url] = f"{counted.size} {counted.version}"
        source.shards()
        assert source.read(0, 3, 10)
        assert counted.read_bytes < counted.size / 8, name


def test_arrays_by_ranges(tmp_path):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    random.seed(seed)
    generator = np.random.default_rng(seed)
    for number, array in enumerate([
        generator.random((50, 3, 2)), generator.integers(0, 9, 50, np.int16).astype(">i2"),
        np.asfortranarray(generator.random((50, 4), np.float32)), np.array([f"w{n}" for n in range(50)]),
    ]):  # fmt: skip
        np.save(tmp_path / f"{number}.npy", array)
        found = all_rows(Arrays([put(tmp_path / f"{number}.npy", f"npy-{seed}")]))
        assert [row["array"] for row in found] == array.tolist()
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(50), y=np.arange(100).reshape(50, 2))
    found = all_rows(Arrays([put(tmp_path / "a.npz", f"npy-{seed}")]))
    assert [row["y"] for row in found] == np.arange(100).reshape(50, 2).tolist()
    assert [set(row) for row in all_rows(Arrays([put(tmp_path / "a.npz", f"npy-{seed}")], ["x"]))] == [{"x"}] * 50
    data = bytearray((tmp_path / "a.npz").read_bytes())
    np.savez(tmp_path / "b.npz", x=np.arange(50))
    data = bytearray((tmp_path / "b.npz").read_bytes())
    data[data.index(np.arange(50).tobytes()) + 9] ^= 1
    (tmp_path / "b.npz").write_bytes(data)
    with pytest.raises(mr.CorruptionError, match=r"b\.npz"):
        all_rows(Arrays([str(tmp_path / "b.npz")]))
    np.save(tmp_path / "c.npy", np.arange(50))
    (tmp_path / "c.npy").write_bytes((tmp_path / "c.npy").read_bytes()[:-1])
    for name in (str(tmp_path / "c.npy"), put(tmp_path / "c.npy", f"cut-{seed}")):
        with pytest.raises(mr.CorruptionError, match="cut off"):
            Arrays([name]).shards()


def test_parquet_says_what_is_wrong(tmp_path):
    path = write_parquet(tmp_path, 0)
    data = path.read_bytes()
    for cut in (0, 4, 12, len(data) // 2, len(data) - 1):
        (tmp_path / "cut.parquet").write_bytes(data[:cut])
        with pytest.raises(mr.CorruptionError, match=r"cut\.parquet"):
            Parquet([str(tmp_path / "cut.parquet")]).shards()
    # A footer that is longer than the first read of the end.
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    wide = pyarrow.table({f"column{n}": [n, n + 1] for n in range(400)})
    parquet.write_table(wide, tmp_path / "wide.parquet", row_group_size=1)
    assert (tmp_path / "wide.parquet").stat().st_size > tables._TAIL
    assert all_rows(Parquet([str(tmp_path / "wide.parquet")])) == wide.to_pylist()


def test_a_folder_that_others_may_write_into_is_not_used(tmp_path, own_folder):
    own_folder.chmod(0o777)
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    assert JsonLines([str(tmp_path / "a.jsonl")]).shards()[0][1] == 1
    assert list(own_folder.iterdir()) == []


def test_parquet_is_read_by_the_thread_that_asks(tmp_path, monkeypatch):
    """A thread of Arrow that lets go of a Python file while Python ends ends the process with SIGABRT."""
    pyarrow = pytest.importorskip("pyarrow")
    from millrace._rows import tables
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({f"c{n}": list(range(5000)) for n in range(8)}), tmp_path / "a.parquet")
    source = Parquet([str(tmp_path / "a.parquet")], columns=["c1", "c6"])
    source.shards()
    readers, fetched = set(), []
    read, ranges = tables._FetchedFile.read, tables._chunk_ranges

    def seen_read(self, size=-1):
        readers.add(threading.get_ident())
        return read(self, size)

    def seen_ranges(group, columns):
        fetched.extend(ranges(group, columns))
        return fetched

    monkeypatch.setattr(tables._FetchedFile, "read", seen_read)
    monkeypatch.setattr(tables, "_chunk_ranges", seen_ranges)
    rows = source.read(0, 0, 5000)
    assert [(row["c1"], row["c6"]) for row in rows] == [(n, n) for n in range(5000)]
    assert readers == {threading.get_ident()}
    # The two columns are fetched, and none of the others.
    assert (
        len(fetched) == 2 and sum(end - begin for begin, end in fetched) < (tmp_path / "a.parquet").stat().st_size / 3
    )
