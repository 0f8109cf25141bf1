# SPDX-License-Identifier: Apache-2.0
"""mr.SampleLoader over rows: JSON lines, Parquet, Arrow and datasets folders, .npy and .npz, sources in Python."""

import bz2
import gzip
import json
import pickle
import random

import numpy as np
import pytest
from millrace.sources import Holes, Null
from sample_tars import picture, picture_tars

import millrace as mr

ROWS = 120


def row(number):
    return {
        "text": f"row {number} ü",
        "label": number % 5,
        "score": number / 8,
        "ids": list(range(number % 6)),
        "meta": {"n": number, "tags": ["a"] * (number % 3)},
        "maybe": None if number % 4 == 0 else f"m{number}",
    }


def write_jsonl(folder):
    for part in range(3):
        lines = [json.dumps(row(n), ensure_ascii=part == 0) for n in range(part * 40, part * 40 + 40)]
        (folder / f"{part}.jsonl").write_bytes(("\n\n".join(lines) + "\n" * part).encode())
    return str(folder / "*.jsonl")


def table(numbers):
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.Table.from_pylist([row(n) for n in numbers])


def write_parquet(folder):
    table([0])
    from pyarrow import parquet

    for part in range(3):
        parquet.write_table(table(range(part * 40, part * 40 + 40)), folder / f"{part}.parquet", row_group_size=13)
    return str(folder / "{0..2}.parquet")


def write_arrow(folder):
    pyarrow = pytest.importorskip("pyarrow")
    for part in range(3):
        rows = table(range(part * 40, part * 40 + 40))
        make = pyarrow.ipc.new_stream if part else pyarrow.ipc.new_file
        with pyarrow.OSFile(str(folder / f"{part}.arrow"), "wb") as file, make(file, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=17)
    return [str(folder / f"{part}.arrow") for part in range(3)]


def write_datasets(folder):
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    datasets.Dataset.from_list([row(n) for n in range(ROWS)]).save_to_disk(str(folder / "set"), num_shards=3)
    return str(folder / "set")


KINDS = [write_jsonl, write_parquet, write_arrow, write_datasets]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def rows(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("rows"))


def plain(value):
    """What pyarrow's to_pylist() has for a value of a row."""
    if isinstance(value, Null):
        return None
    if isinstance(value, Holes):
        return [None if gap else item for item, gap in zip(value.values.tolist(), value.is_null, strict=True)]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


@pytest.mark.parametrize("fields", [None, ["text", "label", "score", "ids", "meta", "maybe"]])
def test_every_row_once(rows, fields):
    found = {}
    with mr.SampleLoader(rows, fields=fields, batch_size=7, epochs=1, drop_last=False, seed=2) as loader:
        for batch in loader:
            assert batch["label"].dtype == np.int64 and batch["score"].dtype == np.float64
            for at in range(len(batch["__key__"])):
                values = {name: plain(batch[name][at]) for name in row(0)}
                assert found.setdefault(values["meta"]["n"], values) is values
    assert found == {n: row(n) for n in range(ROWS)}


def test_columns_become_fields(rows, dataset):
    tokenizer = mr.Tokenizer.from_file(str(dataset.tokenizer))
    fields = {"ids": mr.tokens(tokenizer, "text"), "label": mr.integer(), "maybe": mr.text(optional=True)}
    with mr.SampleLoader(rows, fields=fields, batch_size=6, shuffle=False, epochs=1) as loader:
        batch = next(loader)
    assert set(batch) == {"__key__", "ids", "ids_lengths", "label", "maybe"}
    for n in range(6):
        ids = list(tokenizer.encode(row(n)["text"]))
        assert batch["ids"][n, : len(ids)].tolist() == ids
        assert batch["maybe"][n] == row(n)["maybe"]
    wrong = [
        ("maybe", mr.CorruptionError, "has no field maybe"),
        ("label", ValueError, "it is an array, which does not become"),
    ]
    for name, error, text in wrong:
        with (
            mr.SampleLoader(rows, fields={name: mr.text()}, batch_size=6, shuffle=False) as loader,
            pytest.raises(error, match=text),
        ):
            next(loader)


def run(source, world, state=None, count=None, **arguments):
    loaders = [mr.SampleLoader(source, rank=r, world_size=world, uneven_ranks=True, **arguments) for r in range(world)]
    found = []
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    while count is None or len(found) < count:
        batches = [next(loader, None) for loader in loaders]
        if batches[0] is None:
            break
        found.append(sorted(key for batch in batches for key in batch["__key__"]))
    state = json.loads(json.dumps(loaders[0].state_dict()))
    for loader in loaders:
        loader.close()
    return found, state


def test_a_resume_on_other_ranks_is_exact(rows):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(2):
        arguments = dict(fields=["label"], global_batch_size=chance.randint(3, 12), seed=chance.randrange(99), epochs=2)
        whole, _ = run(rows, 1, **arguments)
        parts, state = [], None
        for count in (chance.randint(0, 4), chance.randint(1, 4), None):
            part, state = run(rows, chance.randint(1, 4), state, count, **arguments)
            parts += part
        assert parts == whole


def test_arrays(tmp_path):
    values = np.arange(60, dtype=np.float32).reshape(20, 3)
    np.save(tmp_path / "a.npy", values)
    with mr.SampleLoader(tmp_path / "a.npy", batch_size=5, epochs=1, shuffle=False) as loader:
        assert np.array_equal(np.concatenate([batch["array"] for batch in loader]), values)
    np.savez_compressed(tmp_path / "b.npz", x=values, y=np.arange(20))
    with mr.SampleLoader(tmp_path / "b.npz", batch_size=5, epochs=1) as loader:
        for batch in loader:
            assert np.array_equal(batch["x"], values[batch["y"]])
    np.savez(tmp_path / "c.npz", x=values, y=np.arange(19))
    with mr.SampleLoader(tmp_path / "c.npz", batch_size=5) as loader, pytest.raises(ValueError, match="other numbers"):
        next(loader)
    np.save(tmp_path / "d.npy", np.array([{}], object), allow_pickle=True)
    with (
        mr.SampleLoader(tmp_path / "d.npy", batch_size=1) as loader,
        pytest.raises(mr.CorruptionError, match=r"d\.npy"),
    ):
        next(loader)


def test_large_row_groups_are_read_in_parts(tmp_path, caplog, monkeypatch):
    from millrace._rows import tables

    table([0])
    from pyarrow import parquet

    rows = [{"n": n, "text": "x" * 500} for n in range(2000)]
    import pyarrow

    parquet.write_table(
        pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet", use_dictionary=False, compression="none"
    )
    monkeypatch.setattr(tables, "PARQUET_WINDOW", 200_000)
    with mr.SampleLoader(tmp_path / "a.parquet", fields=["n"], batch_size=10, epochs=1) as loader:
        seen = [n for batch in loader for n in batch["n"].tolist()]
    assert sorted(seen) == list(range(2000))
    assert "row groups of up to 2000 rows" in caplog.text


def test_slices_of_tables_are_what_arrow_says():
    pyarrow = pytest.importorskip("pyarrow")
    from millrace._rows.tables import table_rows

    numbers = range(30)
    rows = pyarrow.table(
        {
            "list": pyarrow.array([list(range(n % 5)) for n in numbers], pyarrow.list_(pyarrow.int32())),
            "large": pyarrow.array([[n / 2] * (n % 3) for n in numbers], pyarrow.large_list(pyarrow.float64())),
            "fixed": pyarrow.array([[n, n + 1] for n in numbers], pyarrow.list_(pyarrow.int16(), 2)),
            "gaps": pyarrow.array([None if n % 7 == 0 else [n] for n in numbers], pyarrow.list_(pyarrow.int64())),
            "holes": pyarrow.array([[None, n] for n in numbers], pyarrow.list_(pyarrow.int64())),
            "flag": pyarrow.array([n % 2 == 0 for n in numbers]),
            "maybe": pyarrow.array([None if n % 3 == 0 else n for n in numbers]),
            "word": pyarrow.array([f"w{n % 4}" for n in numbers]).dictionary_encode(),
            "deep": pyarrow.array([{"a": [{"b": n}]} for n in numbers]),
        }
    )
    for begin, size in ((0, 30), (7, 11), (29, 1), (13, 17)):
        found = table_rows(rows.slice(begin, size), "t", begin)
        expected = rows.slice(begin, size).to_pylist()
        assert [{k: plain(v) for k, v in row.items() if k != "__key__"} for row in found] == expected
        assert [row["__key__"] for row in found] == [f"t:{n}" for n in range(begin, begin + size)]


def test_pictures_in_a_table(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    generator = np.random.default_rng(1)
    pictures = [{"bytes": picture(generator, 20, 30, "PNG"), "path": f"{n}.png"} for n in range(6)]
    parquet.write_table(pyarrow.table({"image": pictures, "label": list(range(6))}), tmp_path / "p.parquet")
    fields = {"image": mr.image(size=8), "label": ...}
    with mr.SampleLoader(tmp_path / "p.parquet", fields=fields, batch_size=6) as loader:
        assert next(loader)["image"].shape == (6, 8, 8, 3)


class Squares(mr.SampleSource):
    name = "squares"

    def __init__(self, bad=()):
        self.bad = set(bad)

    def shards(self):
        return [("low", 30), ("high", 21)]

    def read(self, shard, begin, end):
        rows = []
        for n in range(shard * 30 + begin, shard * 30 + end):
            wrong = mr.CorruptionError(f"square {n} is round")
            rows.append(wrong if n in self.bad else {"__key__": f"n{n}", "n": n, "square": np.float32(n * n)})
        return rows


def test_a_source_of_ones_own():
    with mr.SampleLoader(Squares(), batch_size=4, epochs=1, drop_last=False) as loader:
        batches = list(loader)
        assert loader.provenance(0)[0][0][0].shard in ("low", "high")
        with pickle.loads(pickle.dumps(loader)) as copy:
            assert [b["__key__"] for b in copy] == [b["__key__"] for b in batches]
    assert sorted(n for batch in batches for n in batch["n"].tolist()) == list(range(51))
    assert all(batch["square"].dtype == np.float32 for batch in batches)
    with mr.SampleLoader(Squares({7}), batch_size=4, shuffle=False) as loader:
        next(loader)
        with pytest.raises(mr.CorruptionError, match="square 7 is round"):
            next(loader)
    arguments = dict(global_batch_size=5, epochs=1, on_bad="quarantine")
    whole, state = run(Squares({7, 40}), 1, **arguments)
    assert len(whole) == 10 and not {"n7", "n40"} & {key for step in whole for key in step}
    assert run(Squares({7, 40}), 3, **arguments)[0] == whole
    assert len(state["quarantined"]) == 2


def test_what_a_source_raises_is_told():
    class Broken(Squares):
        def read(self, shard, begin, end):
            raise ZeroDivisionError("oh")

    class Short(Squares):
        def read(self, shard, begin, end):
            return []

    class Strange(Squares):
        def read(self, shard, begin, end):
            return [{"x": object()}] * (end - begin)

    for source, error, text in [
        (Broken(), Exception, "ZeroDivisionError: oh"),
        (Short(), mr.CorruptionError, "0 rows were read where"),
        (Strange(), ValueError, "object"),
    ]:
        with mr.SampleLoader(source, batch_size=4) as loader, pytest.raises(error, match=text):
            next(loader)
    loader = mr.SampleLoader(Squares(), batch_size=4)
    next(loader)
    del loader  # its threads end while they call Python


def write_mds(folder, compress=None):
    """What streaming.MDSWriter writes of these columns, by the description of the format."""
    import struct

    folder.mkdir()
    columns = {
        "array": "ndarray", "code": "str_int", "fixed": "ndarray:float32:2", "label": "int", "meta": "json",
        "name": "str", "ratio": "float64",
    }  # fmt: skip
    index = []
    for shard in range(2):
        samples = []
        for n in range(shard * 10, shard * 10 + 10):
            array = np.arange(n + 1, dtype=np.int16).reshape(1, -1)
            values = {
                "array": bytes([17, 2 << 2, 1, n + 1]) + array.tobytes(), "code": b"%d" % (n * 1000),
                "fixed": np.array([n, -n], "<f4").tobytes(), "label": struct.pack("<q", n),
                "meta": json.dumps({"n": n}).encode(), "name": f"n{n}".encode(), "ratio": struct.pack("<d", n / 2),
            }  # fmt: skip
            sizes = {"fixed": 8, "label": 8, "ratio": 8}
            head = b"".join(struct.pack("<I", len(values[c])) for c in columns if c not in sizes)
            samples.append(head + b"".join(values[c] for c in columns))
        config = b"{}"
        offsets = np.cumsum([4 + 4 * 11 + len(config), *map(len, samples)]).astype("<u4")
        data = struct.pack("<I", 10) + offsets.tobytes() + config + b"".join(samples)
        facts = {
            "format": "mds", "samples": 10, "compression": compress, "column_names": list(columns),
            "column_encodings": list(columns.values()), "column_sizes": [sizes.get(c) for c in columns],
            "raw_data": {"basename": f"shard.0000{shard}.mds", "bytes": len(data)}, "zip_data": None,
        }  # fmt: skip
        name = folder / facts["raw_data"]["basename"]
        if compress:
            import pyarrow

            kind = compress.partition(":")[0]
            packed = {
                "bz2": bz2.compress,
                "gz": gzip.compress,
                "zstd": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True),
            }
            data = packed[kind](data)
            name = folder / f"{name.name}.{kind}"
            facts["zip_data"] = {"basename": name.name, "bytes": len(data)}
        name.write_bytes(data)
        index.append(facts)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": index}))
    return folder


@pytest.mark.parametrize("compress", [None, "zstd:7", "gz", "bz2:9"])
def test_folders_of_mosaicml_streaming(tmp_path, compress):
    if compress:
        pytest.importorskip("pyarrow")
    folder = write_mds(tmp_path / "mds", compress)
    seen = []
    with mr.SampleLoader(folder, batch_size=4, epochs=1) as loader:
        for batch in loader:
            for row, n in enumerate(batch["label"].tolist()):
                seen.append(n)
                assert batch["array"][row].tolist() == [list(range(n + 1))] and batch["array"][row].dtype == np.int16
                assert batch["fixed"][row].tolist() == [n, -n] and batch["meta"][row] == {"n": n}
                assert batch["name"][row] == f"n{n}" and batch["ratio"][row] == n / 2 and batch["code"][row] == n * 1000
    assert sorted(seen) == list(range(20))
    with mr.SampleLoader(folder, fields=["name"], batch_size=4) as loader:
        assert set(next(loader)) == {"__key__", "name"}
    if compress is None:
        path = folder / "shard.00001.mds"
        path.write_bytes(path.read_bytes()[:-30])
        with mr.SampleLoader(folder, batch_size=10, shuffle=False) as loader:
            next(loader)
            with pytest.raises(mr.CorruptionError, match=r"shard\.00001\.mds"):
                next(loader)


def test_rows_and_tars_are_mixed(rows, tmp_path):
    tars = picture_tars(tmp_path, shards=1, each=30)
    sources = [mr.Source(rows, weight=1), mr.Source(tars, weight=2), mr.Source(Squares(), weight=1)]
    fields = {"value": mr.blob("label;cls;n")}
    with mr.SampleLoader(sources, fields=fields, batch_size=8, carry_source=True) as loader:
        first = [next(loader) for _ in range(12)]
        state = loader.state_dict()
        rest = [next(loader)["__key__"] for _ in range(5)]
    assert np.bincount(np.concatenate([b["source"] for b in first])).tolist() == [24, 48, 24]
    with mr.SampleLoader(sources, fields=fields, batch_size=8) as loader:
        loader.load_state_dict(state)
        assert [next(loader)["__key__"] for _ in range(5)] == rest


def test_damage_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": \n{"x": 3}\n[4]\n')
    with mr.SampleLoader(tmp_path / "a.jsonl", batch_size=1, shuffle=False, epochs=1) as loader:
        next(loader)
        with pytest.raises(mr.CorruptionError, match=r"a\.jsonl: row 1"):
            next(loader)
    arguments = dict(batch_size=2, epochs=1, on_bad="quarantine")
    with mr.SampleLoader(tmp_path / "a.jsonl", **arguments) as loader:
        assert {x for batch in loader for x in batch["x"].tolist()} <= {1, 3}
        assert len(loader.quarantined()) == 2
    pytest.importorskip("pyarrow")
    for name in ("b.parquet", "b.arrow"):
        (tmp_path / name).write_bytes(b"PAR1 this is none")
        with mr.SampleLoader(tmp_path / name, batch_size=1) as loader, pytest.raises(mr.CorruptionError, match=name):
            next(loader)
    with pytest.raises(FileNotFoundError, match="no such file"):
        mr.SampleLoader(tmp_path / "none-*.parquet", batch_size=1)
    with pytest.raises(ValueError, match="several kinds"):
        mr.SampleLoader([tmp_path / "a.jsonl", tmp_path / "b.arrow"], batch_size=1)
