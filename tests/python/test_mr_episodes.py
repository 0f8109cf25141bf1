# SPDX-License-Identifier: Apache-2.0
"""mr.episodes against Python's csv and float(), and against numpy.load."""

from __future__ import annotations

import csv
import math
import os
import pathlib
import pickle
import random
import struct

import numpy as np
import pytest

import millrace as mr

SEED = int(os.environ.get("MILLRACE_TEST_SEED", random.SystemRandom().randrange(1 << 32)))

# What measured readers do silently wrong, each with what csv and float() give (None: they raise, or shift data).
PATHOLOGICAL = {
    "short_row": b"a,b,c\n1,2,3\n4,5\n6,7,8\n",
    "cut_last_line": b"a,b,c\n1,2,3\n4,5",
    "long_row": b"a,b\n1,2\n3,4,5\n",
    "text_in_a_cell": b"a,b\n1,2\n3,oops\n",
    "empty_cell": b"a,b\n1,2\n3,\n",
    "nan": b"a,b\n1,nan\n-NaN,4\n",
    "inf": b"a,b\n1,inf\n-Infinity,+INF\n",
    "bom": b"\xef\xbb\xbfa,b\n1,2\n",
    "no_header": b"0.5,1\n2,3\n",
    "duplicate_column": b"a,b,a\n1,2,3\n",
    "blank_line": b"a,b\n1,2\n\n3,4\n",
    "semicolons_decimal_comma": b"a;b\n1,5;2,5\n",
    "too_large": b"a\n1\n1e400\n",
    "crlf": b"a,b\r\n1,2\r\n3,4\r\n",
    "quoted_line_ends": b's,x\n"a\r\nb",1\n"c,""d""",2\n',
    "quote_without_end": b's,x\na,1\n"b,2\n',
}
READ = {"nan", "inf", "bom", "crlf", "quoted_line_ends"}


def reference(path: pathlib.Path, delimiter: str = ",") -> tuple[list[str], list[list[str]]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.reader(file, delimiter=delimiter))
    while rows and not rows[-1]:
        rows.pop()
    return rows[0], rows[1:]


def bits(values) -> list[int]:
    """The bits of doubles; every NaN of one sign counts as equal."""
    return [struct.unpack("<Q", struct.pack("<d", value))[0] for value in values]


def check_against_python(path: pathlib.Path, episode: mr.episodes.Episode, delimiter: str = ","):
    names, rows = reference(path, delimiter)
    assert len(episode) == len(rows)
    assert sorted(episode.columns + episode.text_columns) == sorted(names)
    for i, name in enumerate(names):
        cells = [row[i] for row in rows]
        if name in episode.text_columns:
            assert episode[name] == cells
        else:
            wanted = np.array([float(cell) for cell in cells]).astype(episode.numbers.dtype)
            assert bits(episode[name].tolist()) == bits(wanted.tolist()), (path, name)


@pytest.mark.parametrize("name", PATHOLOGICAL)
def test_pathological_files_are_right_or_refused(tmp_path: pathlib.Path, name: str):
    path = tmp_path / f"{name}.csv"
    path.write_bytes(PATHOLOGICAL[name])
    if name in READ:
        return check_against_python(path, mr.episodes.read_csv(path, dtype="float64"))
    with pytest.raises(mr.CorruptionError, match=rf"{name}\.csv:\d+:\d+: "):
        mr.episodes.read_csv(path)


def test_named_policies_read_what_is_refused(tmp_path: pathlib.Path):
    for name, content in PATHOLOGICAL.items():
        (tmp_path / f"{name}.csv").write_bytes(content)
    empty = mr.episodes.read_csv(tmp_path / "empty_cell.csv", empty="nan")
    assert math.isnan(empty.numbers[1, 1]) and empty.numbers[1, 0] == 3
    assert mr.episodes.read_csv(tmp_path / "no_header.csv", header="no").columns == ["c0", "c1"]
    assert mr.episodes.read_csv(tmp_path / "text_in_a_cell.csv", text=["b"])["b"] == ["2", "oops"]
    comma = mr.episodes.read_csv(tmp_path / "semicolons_decimal_comma.csv", decimal=",")
    assert comma.numbers.tolist() == [[1.5, 2.5]]


NUMBERS = ["0", "-0", "1.", ".5", " 7", "1_000", "+3", "nan", "-inf", "1e5", "2.5E-3", "1e-400", "9007199254740993"]
NOT_NUMBERS = ["", "x", "1e400", "--1", "0x1", "1,5", "é", "1__0", '"', "1 2"]
WORDS = ["go", "put, it", 'say "hi"', "two\nlines", "tab\there", "grün", "\r", "", "🤖"]


def random_cell(rng: random.Random) -> str:
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(NUMBERS)
    if kind == 1:
        return repr(struct.unpack("<d", rng.randbytes(8))[0])
    if kind == 2:
        return f"{rng.uniform(-10, 10):.{rng.randrange(20)}f}"
    if kind == 3:
        return f"{rng.randrange(10 ** rng.randrange(1, 25))}e{rng.randrange(-30, 30)}"
    return f"{rng.gauss(0, 1):.9g}"


def random_file(rng: random.Random, path: pathlib.Path) -> str:
    """Writes a CSV file that is good in half of the cases; returns its delimiter."""
    delimiter = rng.choice(",,;\t|")
    columns = rng.randrange(1, 7)
    texts = [rng.random() < 0.25 for _ in range(columns)]
    rows = [[f"n{i}" for i in range(columns)]]
    for _ in range(rng.choice((0, 1, 2, 30))):
        rows.append([rng.choice(WORDS) if text else random_cell(rng) for text in texts])
    if len(rows) > 1 and rng.random() < 0.4:
        row = rows[rng.randrange(1, len(rows))]
        row[rng.randrange(columns)] = rng.choice(NOT_NUMBERS)
    if len(rows) > 1 and rng.random() < 0.15:
        rows[rng.randrange(1, len(rows))].append("1")
    end = rng.choice(("\n", "\r\n"))
    quoting = rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    with path.open("w", newline="", encoding=rng.choice(("utf-8", "utf-8-sig"))) as file:
        csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=quoting).writerows(rows)
    data = path.read_bytes()
    if rng.random() < 0.1:
        data = data[: rng.randrange(len(data))]
    elif rng.random() < 0.2:
        data = data.rstrip(b"\r\n") + rng.choice((b"", b"\n\n", b"\n\n1"))
    path.write_bytes(data)
    return delimiter


def test_random_files_are_pythons(tmp_path: pathlib.Path):
    rng = random.Random(SEED)
    print("MILLRACE_TEST_SEED", SEED)
    read = 0
    path = tmp_path / "a.csv"
    for _ in range(1500):
        delimiter = random_file(rng, path)
        try:
            episode = mr.episodes.read_csv(path, dtype="float64", delimiter=delimiter)
        except mr.CorruptionError as error:
            assert str(error).startswith(f"{path}:")
            continue
        check_against_python(path, episode, delimiter)
        read += 1
    assert read > 400


def write_dataset(folder: pathlib.Path, lengths, columns: int = 5, text: bool = True) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(SEED)
    folder.mkdir(parents=True)
    arrays = {}
    for i, length in enumerate(lengths):
        values = rng.normal(size=(length, columns)).astype(np.float32)
        arrays[f"episode_{i}"] = values
        with (folder / f"episode_{i}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow([f"joint_{j}" for j in range(columns)] + (["task"] if text else []))
            for row in values:
                out.writerow([repr(float(x)) for x in row] + (["pick the grüne cube"] if text else []))
    return arrays


LENGTHS = [40, 0, 1, 17, 300]


@pytest.mark.parametrize("to", ["npz", "packed"])
def test_datasets_open_as_they_were_converted(tmp_path: pathlib.Path, to: str):
    arrays = write_dataset(tmp_path / "set", LENGTHS)
    report = mr.episodes.convert(tmp_path / "set", to=to)
    assert report["converted"] == len(LENGTHS) and report["failed"] == [] and report["rows"] == sum(LENGTHS)
    episodes = mr.episodes.open(tmp_path / "set")
    assert len(episodes) == len(LENGTHS) and episodes.names == list(arrays)
    assert episodes.lengths.tolist() == LENGTHS and episodes.dtype == np.float32
    assert episodes.columns == [f"joint_{j}" for j in range(5)] and episodes.text_columns == ["task"]
    for episode, (name, wanted) in zip(episodes, arrays.items(), strict=True):
        assert episode.name == name
        np.testing.assert_array_equal(episode.numbers, wanted)
        np.testing.assert_array_equal(episode["joint_3"], wanted[:, 3])
        assert episode["task"] == ["pick the grüne cube"] * len(wanted)
        assert not episode.numbers.flags.writeable and not episode.numbers.flags.owndata
        with pytest.raises(KeyError):
            episode["none"]
    rng = random.Random(SEED)
    for _ in range(200):
        i = rng.randrange(-len(LENGTHS), len(LENGTHS))
        start = rng.randrange(LENGTHS[i] + 1)
        rows = rng.randrange(LENGTHS[i] - start + 1)
        np.testing.assert_array_equal(episodes.window(i, start, rows), list(arrays.values())[i][start : start + rows])
    for i, start, rows in [(5, 0, 0), (-6, 0, 0), (0, 25, 16), (0, -1, 1), (0, 0, -1), (0, 41, 0), (0, 2**62, 2**62)]:
        with pytest.raises(IndexError):
            episodes.window(i, start, rows)
    again = pickle.loads(pickle.dumps(episodes))
    np.testing.assert_array_equal(again.window(4, 100, 16), arrays["episode_4"][100:116])
    window = again.window(4, 100, 16)
    del again
    np.testing.assert_array_equal(window, arrays["episode_4"][100:116])
    if to == "packed":
        np.testing.assert_array_equal(episodes.numbers, np.concatenate(list(arrays.values())))
    else:
        with pytest.raises(AttributeError):
            episodes.numbers  # noqa: B018


@pytest.mark.parametrize("compress", [False, True])
def test_numpy_reads_the_npz_files(tmp_path: pathlib.Path, compress: bool):
    arrays = write_dataset(tmp_path / "set", LENGTHS)
    mr.episodes.convert(tmp_path / "set", compress=compress, dtype="float64", out=tmp_path / "out")
    for name, wanted in arrays.items():
        path = tmp_path / "out" / f"{name}.npz"
        with np.load(path) as npz:
            assert sorted(npz.files) == ["columns", "data", "text/task"]
            np.testing.assert_array_equal(npz["data"], wanted.astype(np.float64))
            assert npz["columns"].tolist() == [f"joint_{j}" for j in range(5)]
            assert npz["text/task"].tolist() == ["pick the grüne cube"] * len(wanted)
        if not compress and wanted.size:
            mapped = mr.episodes.open(path)[0].numbers
            assert mapped.ctypes.data % 64 == 0
            assert path.read_bytes().find(mapped.tobytes()) % 64 == 0


def test_a_packed_file_is_as_small_as_npz(tmp_path: pathlib.Path):
    arrays = write_dataset(tmp_path / "set", [200] * 20, columns=31, text=False)
    report = mr.episodes.convert(tmp_path / "set", to="packed", out=tmp_path / "set.mrpack")
    for name, values in arrays.items():
        np.savez(tmp_path / f"{name}.npz", values)
    npz = sum(path.stat().st_size for path in tmp_path.glob("*.npz"))
    assert report["output_bytes"] == (tmp_path / "set.mrpack").stat().st_size <= 1.01 * npz


def test_errors_of_files_are_in_the_report(tmp_path: pathlib.Path):
    write_dataset(tmp_path / "set", [3, 4])
    (tmp_path / "set" / "bad.csv").write_text("joint_0\n1\n,2\n")
    report = mr.episodes.convert(tmp_path / "set", dry_run=True)
    assert report["converted"] == 2 and len(report["kinds"]) == 1
    ((file, error),) = [(each["file"], each["error"]) for each in report["failed"]]
    assert file.endswith("bad.csv") and "bad.csv:3:1: this row has more cells" in error
    assert not list((tmp_path / "set").glob("*.npz"))
    with pytest.raises(FileNotFoundError):
        mr.episodes.convert(tmp_path / "none")
    with pytest.raises(ValueError, match="dtype"):
        mr.episodes.convert(tmp_path / "set", dtype="float16")


@pytest.mark.parametrize("to", ["npz", "packed"])
def test_damage_is_an_error(tmp_path: pathlib.Path, to: str):
    arrays = write_dataset(tmp_path / "set", [50, 60], text=False)
    mr.episodes.convert(tmp_path / "set", to=to)
    path = tmp_path / "set" / ("episodes.mrpack" if to == "packed" else "episode_1.npz")
    data = bytearray(path.read_bytes())
    at = bytes(data).find(arrays["episode_1"][30:31].tobytes())
    data[at + 5] ^= 8
    path.unlink()
    path.write_bytes(data)
    with pytest.raises(mr.CorruptionError, match=path.name):
        mr.episodes.open(tmp_path / "set").window(1, 20, 16)
    path.unlink()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(mr.CorruptionError, match=path.name):
        mr.episodes.open(tmp_path / "set")[1]


def test_npz_files_of_others_are_refused_with_the_reason(tmp_path: pathlib.Path):
    np.savez(tmp_path / "a.npz", joint=np.zeros(3))
    with pytest.raises(NotImplementedError, match='no members "data" and "columns"'):
        mr.episodes.open(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", data=np.arange(6, dtype=np.float32).reshape(3, 2), columns=np.array(["x", "é"]))
    assert mr.episodes.open(tmp_path / "a.npz")[0]["é"].tolist() == [1, 3, 5]
