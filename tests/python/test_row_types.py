# SPDX-License-Identifier: Apache-2.0
"""A column of rows has one type in every batch, and what a file carries to prove its bytes is looked at."""

import decimal
import hashlib
import json
import random

import numpy as np
import pytest
from test_rows import write_mds

import millrace as mr

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

ROWS = 400
ARROW_TYPES = [
    pyarrow.float32(), pyarrow.float64(), pyarrow.uint8(), pyarrow.int16(), pyarrow.int64(), pyarrow.uint64(),
    pyarrow.bool_(),
]  # fmt: skip


def chance():
    seed = random.randrange(1 << 30)
    print("seed", seed)
    return random.Random(seed)


def batches(path, **arguments):
    with mr.SampleLoader(path, **{"batch_size": 16, "epochs": 1, "seed": 1} | arguments) as loader:
        return list(loader)


def with_nulls(kind, nulls):
    values = [None if n in nulls else n % 2 if kind == pyarrow.bool_() else n % 200 for n in range(ROWS)]
    return pyarrow.array(values).cast(kind)


def write(path, columns, rows_of_a_group=50):
    parquet.write_table(pyarrow.table(columns), path, row_group_size=rows_of_a_group)
    return path


@pytest.mark.parametrize("kind", ARROW_TYPES, ids=str)
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_null_changes_no_type(tmp_path, kind, form):
    nulls = set(chance().sample(range(ROWS), 3))
    column = with_nulls(kind, nulls)
    path = tmp_path / f"t.{form}"
    table = pyarrow.table({"x": column, "n": list(range(ROWS))})
    if form == "parquet":
        parquet.write_table(table, path, row_group_size=50)
    else:
        with pyarrow.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=50)
    dtype = kind.to_pandas_dtype()
    found = batches(path, fields={"x": mr.number(fill=1), "n": mr.number()})
    assert {batch["x"].dtype for batch in found} == {np.dtype(dtype)}
    expected = column.fill_null(True if kind == pyarrow.bool_() else 1).to_numpy(zero_copy_only=False)
    for batch in found:
        assert np.array_equal(batch["x"], expected[batch["n"]])
    found = batches(path, fields={"x": mr.number(mask=True), "n": ...})
    assert {batch["x"].dtype for batch in found} == {np.dtype(dtype)}
    for batch in found:
        assert batch["x_mask"].dtype == np.bool_
        assert [n for n, there in zip(batch["n"], batch["x_mask"], strict=True) if not there] == [
            n for n in batch["n"] if n in nulls
        ]
    found = batches(path, fields={"x": mr.number(optional=True), "n": ...})
    assert all(isinstance(batch["x"], list) for batch in found)
    assert {n for b in found for n, x in zip(b["n"].tolist(), b["x"], strict=True) if x is None} == nulls
    whole = [{"x": mr.integer()}] if "int" in str(kind) else []
    for fields in (None, ["x"], {"x": mr.number()}, *whole):
        with pytest.raises(ValueError, match=rf"t\.{form}.*x: a null in a column of .*mr\.number\(fill=") as error:
            batches(path, fields=fields, shuffle=False)
        group = min(nulls) // 50 if form == "parquet" else 0
        assert f":{min(nulls) - 50 * group}: x" in str(error.value)


def test_a_dtype_that_was_named(tmp_path):
    path = write(tmp_path / "t.parquet", {"x": pyarrow.array([1.0, 2.0, None, 255.0] * 20, pyarrow.float32())})
    found = batches(path, fields={"x": mr.number("uint8", fill=7)}, shuffle=False)
    assert found[0]["x"].dtype == np.uint8 and found[0]["x"].tolist() == [1, 2, 7, 255] * 4
    for dtype, fill, wrong in [("int8", 7, "255 is not exactly a number of |i1"), ("uint8", 1.5, "fill=1.5 is not")]:
        with pytest.raises(ValueError, match=rf"t\.parquet.*x: {wrong.replace('|', '.')}"):
            batches(path, fields={"x": mr.number(dtype, fill=fill)}, shuffle=False)
    generator = chance()
    dtypes = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64", "bool"]
    for _ in range(40):
        stored, wanted = generator.choice(dtypes), generator.choice(dtypes)
        with np.errstate(all="ignore"):
            value = np.array(generator.choice([0, 1, -1, 127, 128, 255, 2**31, 2**62, 0.5, -0.5, 1e30])).astype(stored)
        np.save(tmp_path / "v.npy", np.full(16, value))
        with np.errstate(all="ignore"):
            expected = value.astype(wanted)
            exact = wanted.startswith("float") or (
                expected.item() == value.item() and not (wanted == "bool" and value.item() not in (0, 1))
            )
        if exact:
            got = batches(tmp_path / "v.npy", fields={"array": mr.number(wanted)})[0]["array"]
            assert got.dtype == wanted and np.array_equal(got, np.full(16, expected)), (stored, wanted, value)
        else:
            with pytest.raises(ValueError, match="is not exactly a number of"):
                batches(tmp_path / "v.npy", fields={"array": mr.number(wanted)})


@pytest.mark.parametrize("fixed", [False, True])
def test_lists_of_numbers_keep_their_type(tmp_path, fixed):
    values = [[n, n + 1] for n in range(ROWS)]
    values[130], values[333] = [None, 1], None
    kind = pyarrow.list_(pyarrow.float32(), 2) if fixed else pyarrow.list_(pyarrow.float32())
    path = write(tmp_path / "l.parquet", {"x": pyarrow.array(values, kind), "n": list(range(ROWS))})
    fields = {"x": mr.array(fill=-1, optional=True), "n": ...}
    for batch in batches(path, fields=fields):
        for n, x in zip(batch["n"].tolist(), batch["x"], strict=True):
            assert (
                x is None if n == 333 else x.dtype == np.float32 and x.tolist() == ([-1, 1] if n == 130 else values[n])
            )
    for match, fields in [
        (r"#2:30: x: a null in a column of lists", None),
        (r"#6:33: x: a null", {"x": mr.array(fill=0)}),
    ]:
        with pytest.raises(ValueError, match=match):
            batches(path, fields=fields, shuffle=False)
    values[130] = values[333] = [0, 0]
    path = write(tmp_path / "m.parquet", {"x": pyarrow.array(values, kind)})
    found = batches(path, fields={"x": mr.array(dtype="float64", shape=[2])})
    assert {(batch["x"].dtype.str, batch["x"].shape) for batch in found} == {("<f8", (16, 2))}
    with pytest.raises(ValueError, match=r"x: its shape is \[2\], not \[3\]"):
        batches(path, fields={"x": mr.array(shape=[3])})


def test_json_lines_have_one_type(tmp_path):
    generator = chance()
    rows = [{"n": n, "score": generator.choice([1, 1.5, -2]), "ids": [n, n + 1]} for n in range(ROWS)]
    rows[0]["score"], rows[-1]["score"] = 1, 2.5
    for part in range(2):
        text = "\n".join(json.dumps(row) for row in rows[part * 200 : part * 200 + 200])
        (tmp_path / f"{part}.jsonl").write_text(text)
    found = batches(tmp_path / "*.jsonl")
    assert {batch["score"].dtype for batch in found} == {np.dtype(np.float64)}
    assert {batch["n"].dtype for batch in found} == {np.dtype(np.int64)}
    assert all(rows[n]["score"] == x for b in found for n, x in zip(b["n"], b["score"], strict=True))
    found = batches(tmp_path / "*.jsonl", fields={"x": mr.number("float32", "score"), "ids": mr.array(dtype="int32")})
    assert {batch["x"].dtype for batch in found} == {np.dtype(np.float32)}
    assert {(batch["ids"].dtype.str, batch["ids"].shape) for batch in found} == {("<i4", (16, 2))}
    # A value that one row lacks, a number beside texts, integers that int64 can't represent, numbers beyond a double.
    rows = [{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1} for _ in range(64)]
    lines = [json.dumps(row) for row in rows]
    lines[40] = '{"b": "x", "c": 123456789012345678901, "d": 1e999, "e": NaN, "f": [1, "x"]}'
    (tmp_path / "mixed.jsonl").write_text("\n".join(lines))
    found = batches(
        tmp_path / "mixed.jsonl", fields={"a": mr.number(mask=True), "b": ..., "c": ..., "d": ..., "e": ...}
    )
    assert {batch["a"].dtype.str for batch in found} == {"<i8"}
    assert sum(int((~batch["a_mask"]).sum()) for batch in found) == 1
    assert all(isinstance(batch[name], list) for batch in found for name in "bc")
    assert {x for batch in found for x in batch["c"]} == {1, 123456789012345678901}
    assert {batch[name].dtype.str for batch in found for name in "de"} == {"<f8"}
    with pytest.raises(ValueError, match=r"mixed\.jsonl:40: a: a null in a column of <i8"):
        batches(tmp_path / "mixed.jsonl", fields=["a"])


def test_files_of_several_types_are_refused(tmp_path):
    write(tmp_path / "0.parquet", {"x": pyarrow.array([1.0] * 40, pyarrow.float32())})
    write(tmp_path / "1.parquet", {"x": pyarrow.array([1.0] * 40, pyarrow.float64())})
    with pytest.raises(ValueError, match=r"1\.parquet: column 'x' is double, and float in .*0\.parquet"):
        batches(tmp_path / "*.parquet")
    found = batches(tmp_path / "*.parquet", fields={"x": mr.number("float32")})
    assert {batch["x"].dtype for batch in found} == {np.dtype(np.float32)}

    class Mixed(mr.SampleSource):
        def shards(self):
            return [("s", 8)]

        def read(self, shard, begin, end):
            return [{"x": n if n % 2 else n + 0.5} for n in range(begin, end)]

    with pytest.raises(ValueError, match=r"field x: .*mr\.number"):
        batches(Mixed(), batch_size=4)
    assert batches(Mixed(), batch_size=4, fields={"x": mr.number("float64")})[0]["x"].dtype == np.float64


def test_a_padded_batch_has_the_same_types(tmp_path):
    path = write(tmp_path / "t.parquet", {"x": list(range(10)), "y": [[1, 2]] * 10})
    found = batches(path, batch_size=4, drop_last=False, fill_last="pad", shuffle=False)
    assert [(b["x"].dtype.str, b["y"].shape) for b in found] == [("<i8", (4, 2))] * 3
    assert found[-1]["x"].tolist() == [8, 9, 0, 0]
    found = batches(path, batch_size=4, fields={"x": mr.number(mask=True)}, fill_last="pad", drop_last=False)
    assert found[-1]["x_mask"].tolist() == [True, True, False, False]
    found = batches(path, batch_size=4, fields={"x": mr.number(mask=True)}, map=lambda sample: sample)
    assert found[0]["x"].dtype == np.int64 and found[0]["x_mask"].all()


def test_decimals_and_dates_that_python_lacks(tmp_path):
    price = pyarrow.array([decimal.Decimal("12345678901234567890.25")] * 20, pyarrow.decimal128(30, 2))
    inner = pyarrow.StructArray.from_arrays([price], ["price"])
    path = write(tmp_path / "d.parquet", {"price": price, "inner": inner, "small": price.slice(0, 20)})
    found = batches(path)
    assert found[0]["price"][0] == "12345678901234567890.25"
    assert found[0]["inner"][0] == {"price": "12345678901234567890.25"}
    assert batches(path, fields={"price": mr.number("float64")})[0]["price"][0] == 12345678901234567890.25
    days = pyarrow.array([0] * 19 + [10**7], pyarrow.int32()).cast(pyarrow.date32())
    path = write(tmp_path / "e.parquet", {"s": pyarrow.StructArray.from_arrays([days], ["day"]), "day": days})
    assert batches(path, fields=["day"], shuffle=False)[0]["day"].dtype == np.dtype("M8[D]")
    with pytest.raises(mr.CorruptionError, match=r"e\.parquet#0: row 19: column s: "):
        batches(path, shuffle=False, batch_size=20)


def test_checksums_of_pages_are_looked_at(tmp_path):
    rows = pyarrow.table({"text": [f"document {i} about the weather" for i in range(2000)]})
    options = dict(compression=None, use_dictionary=False)
    for checks in (True, False):
        path = tmp_path / f"{checks}.parquet"
        parquet.write_table(rows, path, write_page_checksum=checks, **options)
        data = bytearray(path.read_bytes())
        data[data.find(b"document 1500") + 9] ^= 1
        path.write_bytes(data)
        if checks:
            with pytest.raises(mr.CorruptionError, match="CRC"):
                batches(path)
        else:  # nothing in the file can show it, which docs/samples.md says
            assert len(batches(path)) == 125


@pytest.mark.parametrize("compress", [None, "gz"])
def test_hashes_of_mds_are_looked_at(tmp_path, compress):
    folder = write_mds(tmp_path / "mds", compress)
    index = json.loads((folder / "index.json").read_text())
    for facts in index["shards"]:
        for entry in (facts["raw_data"], facts["zip_data"]):
            if entry and (folder / entry["basename"]).exists():
                data = (folder / entry["basename"]).read_bytes()
                entry["hashes"] = {"sha1": hashlib.sha1(data).hexdigest()}
    (folder / "index.json").write_text(json.dumps(index))
    assert len(batches(folder, batch_size=4)) == 5
    facts = index["shards"][1]["zip_data"] or index["shards"][1]["raw_data"]
    path = folder / facts["basename"]
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(mr.CorruptionError, match=rf"{path.name}: its sha1 is"):
        batches(folder, batch_size=4)


def test_numbers_of_tars(tmp_path):
    import io
    import tarfile

    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for n, text in enumerate([b"1", b" 2.5\n", b"+3", b"-4e2"]):
            info = tarfile.TarInfo(f"{n}.score")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
    found = batches(tmp_path / "t.tar", batch_size=4, shuffle=False, fields={"score": mr.number("float32")})
    assert found[0]["score"].tolist() == [1, 2.5, 3, -400]
    with pytest.raises(ValueError, match="it is text: give its type"):
        batches(tmp_path / "t.tar", batch_size=4, fields={"score": mr.number()})
    with pytest.raises(mr.CorruptionError, match="'x' is not a number"):
        with tarfile.open(tmp_path / "t.tar", "w") as tar:
            info = tarfile.TarInfo("a.score")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))
        batches(tmp_path / "t.tar", batch_size=1, fields={"score": mr.number("float32")})
