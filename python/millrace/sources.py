# SPDX-License-Identifier: Apache-2.0
"""Where rows come from that are in no tar: JSON lines, Parquet, Arrow, .npy and .npz, MDS, or an object of yours."""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import logging
import os
import struct
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from millrace import _core
from millrace.io import open as open_file

KEY = "__key__"
T = TypeVar("T")
_logger = logging.getLogger("millrace")
_PARQUET_WINDOW = 32 << 20  # bytes of a row group that are shuffled together


def encode(value: Any) -> bytes:
    """A value as a loader keeps it: bytes, str, numbers and arrays as they are, other things as JSON. Raises TypeError."""
    if value is None:
        return b"n"
    if isinstance(value, str):
        return b"t" + value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return b"b" + bytes(value)
    if isinstance(value, (bool, int, float, np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype.hasobject or array.dtype.itemsize == 0 or array.dtype.kind == "V":
            raise TypeError(f"an array of dtype {array.dtype}: its items have no fixed size")
        dtype = array.dtype.str.encode()
        head = b"a" + bytes([len(dtype)]) + dtype + bytes([array.ndim]) + struct.pack(f"<{array.ndim}q", *array.shape)
        return head + array.tobytes()
    return b"j" + json.dumps(value, ensure_ascii=False, default=_as_json).encode()


def _as_json(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    raise TypeError(f"a {type(value).__name__} inside a list or dict")


class SampleSource(ABC):
    """Samples that you read yourself; `mr.SampleLoader(MySource(), ...)` gives them their order, epochs and states.

    Samples are numbered in shards, which is what is read together (a file, say). `read` is called on a thread of the
    loader, a few hundred samples at a time. What it gives must depend on its arguments alone: then a resumed run sees
    the same. Pickled with the loader.
    """

    #: For messages.
    name = "samples"
    #: Samples that are best read together, such as the row group of a table; 0: the loader chooses.
    window_rows = 0

    @abstractmethod
    def shards(self) -> Sequence[tuple[str, int]]:
        """The name of each shard, and how many samples it has. Always the same."""

    @abstractmethod
    def read(self, shard: int, begin: int, end: int) -> Sequence[Mapping[str, Any] | Exception]:
        """Samples [begin, end) of a shard: dicts of bytes, str, numbers, arrays, or what JSON can write. '__key__' is the
        key; without it, SHARD:NUMBER. An exception in place of a sample is what is wrong with this one: raised by the
        loader, or a reason to let another sample take its place (on_bad="quarantine")."""

    def total_bytes(self) -> int:
        """Of all samples, about; 0: not known. The order depends on it."""
        return 0

    def identity(self) -> str:
        """Other samples have another identity; states name it. By default, the names and sizes of the shards."""
        names = [(name.rpartition("/")[2], samples) for name, samples in self.shards()]
        return hashlib.sha256(json.dumps([type(self).__qualname__, names]).encode()).hexdigest()[:32]

    def _facts(self) -> tuple[str, str, list[tuple[str, int]], int, int]:
        shards = [(name, int(samples)) for name, samples in self.shards()]
        return self.name, self.identity(), shards, int(self.total_bytes()), int(self.window_rows)

    def _read(self, shard: int, begin: int, end: int) -> list[Any]:
        rows: list[Any] = []
        for number, sample in enumerate(self.read(shard, begin, end), begin):
            if isinstance(sample, Exception):
                rows.append(sample)
                continue
            try:
                fields = [(name, encode(value)) for name, value in sample.items() if name != KEY]
            except (TypeError, ValueError) as error:
                rows.append(ValueError(f"sample {number}: {error}"))
                continue
            rows.append((str(sample.get(KEY, f"{self.shards()[shard][0]}:{number}")), fields))
        return rows


class _Recent(OrderedDict[Any, tuple[T, int]]):
    """The values that were used last, up to a number of bytes, and one at least. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._most = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()

    def recall(self, key: Any) -> T | None:
        with self._lock:
            if key not in self:
                return None
            self.move_to_end(key)
            return self[key][0]

    def keep(self, key: Any, value: T, size: int) -> None:
        with self._lock:
            if key in self:
                return
            self[key] = (value, size)
            self._bytes += size
            while self._bytes > self._most and len(self) > 1:
                self._bytes -= self.popitem(last=False)[1][1]


class _Files(SampleSource):
    """Rows of files. What was opened stays with this process."""

    def __init__(self, files: Sequence[str], columns: Sequence[str] | None = None) -> None:
        self.files = list(files)
        self.columns = None if columns is None else list(columns)
        self.name = self.files[0] if len(self.files) == 1 else f"{self.files[0]} and others"
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._shards: list[tuple[str, int]] | None = None
        self._reset()

    def _reset(self) -> None:
        """Forgets what was opened."""

    @abstractmethod
    def _open(self) -> list[tuple[str, int]]:
        """The shards."""

    def shards(self) -> list[tuple[str, int]]:
        if self._process != os.getpid():
            self._forget()
        with self._lock:
            if self._shards is None:
                self._shards = self._open()
            return self._shards

    def __getstate__(self) -> tuple[list[str], list[str] | None]:
        return self.files, self.columns

    def __setstate__(self, state: tuple[list[str], list[str] | None]) -> None:
        self.files, self.columns = state
        self.name = self.files[0] if len(self.files) == 1 else f"{self.files[0]} and others"
        self._forget()

    def _check_columns(self, name: str, there: Iterable[str]) -> None:
        missing = set(self.columns or ()) - set(there)
        if missing:
            raise ValueError(
                f"{name}: there is no column {sorted(missing)[0]!r}; there are {', '.join(map(str, there))}"
            )


class JsonLines(_Files):
    """Rows of JSON lines; each is an object. A file is read once when it is opened, to find its lines. Blank lines are
    no rows."""

    def _reset(self) -> None:
        self._lines: list[npt.NDArray[np.int64]] = []  # where each line begins and ends

    def _open(self) -> list[tuple[str, int]]:
        self._lines = [self._find_lines(name) for name in self.files]
        return [(name, len(lines)) for name, lines in zip(self.files, self._lines, strict=True)]

    def _find_lines(self, name: str) -> npt.NDArray[np.int64]:
        found, at, begin = [], 0, 0
        with open_file(name, "rb") as file:
            for line in file:
                at += len(line)
                if line.strip():
                    found.append((begin, at))
                begin = at
        return np.array(found, np.int64).reshape(-1, 2)

    def read(self, shard: int, begin: int, end: int) -> list[Mapping[str, Any] | Exception]:
        name = self.shards()[shard][0]
        lines = self._lines[shard][begin:end]
        first, last = int(lines[0][0]), int(lines[-1][1])
        with open_file(name, "rb") as file:
            file.seek(first)
            data = file.read(last - first)
        rows: list[Mapping[str, Any] | Exception] = []
        for number, (line_begin, line_end) in enumerate(lines.tolist(), begin):
            try:
                row = json.loads(data[line_begin - first : line_end - first])
            except ValueError as error:
                rows.append(_core.CorruptionError(f"{name}: row {number}: {error}"))
                continue
            if not isinstance(row, dict):
                rows.append(_core.CorruptionError(f"{name}: row {number}: no JSON object"))
                continue
            if self.columns is not None:
                row = {column: row.get(column) for column in self.columns}
            rows.append({KEY: f"{name}:{number}", **row})
        return rows

    def total_bytes(self) -> int:
        self.shards()
        return sum(int(lines[-1][1]) for lines in self._lines if len(lines))


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("tables in Parquet and Arrow need the package pyarrow: pip install pyarrow") from error
    return pyarrow


def _column_values(column: Any) -> list[Any]:
    """The values of a column of a table. Numbers and lists of numbers are arrays, which share its memory."""
    pyarrow = _arrow()
    types = pyarrow.types
    if isinstance(column, pyarrow.ChunkedArray):
        return [value for chunk in column.chunks for value in _column_values(chunk)]
    kind = column.type
    if isinstance(column, pyarrow.ExtensionArray):
        return _column_values(column.storage)
    if types.is_dictionary(kind):
        return _column_values(column.dictionary_decode())
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if (is_number or types.is_timestamp(kind) or types.is_date(kind)) and column.null_count == 0:
        return list(column.to_numpy(zero_copy_only=False))
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    is_numbers = is_list and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type))
    if is_numbers and column.null_count == 0 and column.flatten().null_count == 0:
        values = column.flatten().to_numpy(zero_copy_only=False)
        if types.is_fixed_size_list(kind):
            return list(values.reshape(len(column), kind.list_size))
        offsets = column.offsets.to_numpy()
        return [values[a - offsets[0] : b - offsets[0]] for a, b in itertools.pairwise(offsets)]
    # What the package datasets makes of pictures and sounds.
    if types.is_struct(kind) and {field.name for field in kind} == {"bytes", "path"}:
        return list(column.field("bytes").to_pylist())
    return list(column.to_pylist())


def table_rows(table: Any, name: str, begin: int) -> list[Mapping[str, Any]]:
    """Rows of a table of Arrow, whose first one is number `begin` of `name`."""
    columns = {column: _column_values(table.column(column)) for column in table.column_names}
    return [
        {KEY: f"{name}:{begin + row}", **{column: values[row] for column, values in columns.items()}}
        for row in range(table.num_rows)
    ]


class Parquet(_Files):
    """Rows of Parquet. A row group is read whole and is what the shuffle reads together, so it is decoded once an epoch;
    a shard of the order is one row group."""

    def _reset(self) -> None:
        self._groups: list[tuple[str, int]] = []
        self._tables: _Recent[Any] = _Recent(256 << 20)
        self._bytes = 0
        self._told = False

    def _open(self) -> list[tuple[str, int]]:
        parquet = _parquet()
        self._groups, self._bytes, shards = [], 0, []
        for name in self.files:
            with open_file(name, "rb") as stream:
                try:
                    file = parquet.ParquetFile(stream)
                except _arrow().ArrowInvalid as error:
                    raise _core.CorruptionError(f"{name}: {error}") from error
                self._check_columns(name, file.schema_arrow.names)
                for group in range(file.metadata.num_row_groups):
                    facts = file.metadata.row_group(group)
                    if facts.num_rows == 0:
                        continue
                    self._groups.append((name, group))
                    self._bytes += facts.total_byte_size
                    shards.append((f"{name}#{group}", facts.num_rows))
        return shards

    @property
    def window_rows(self) -> int:  # type: ignore[override]
        # The largest group: a window is a group, as far as it fits into memory well.
        largest = max((samples for _, samples in self.shards()), default=0)
        rows = sum(samples for _, samples in self.shards())
        most = max(256, _PARQUET_WINDOW * rows // max(self._bytes, 1))
        if largest > 2 * most and not self._told:
            self._told = True
            _logger.warning(
                "%s: row groups of up to %d rows are decoded once for every %d of their rows; write groups of some "
                "ten thousand rows (row_group_size=) to read each once",
                self.name, largest, most,
            )  # fmt: skip
        return min(largest, most)

    def total_bytes(self) -> int:
        self.shards()
        return self._bytes

    def read(self, shard: int, begin: int, end: int) -> list[Mapping[str, Any] | Exception]:
        shard_name = self.shards()[shard][0]
        table = self._tables.recall(shard)
        if table is None:
            name, group = self._groups[shard]
            with open_file(name, "rb") as stream:
                try:
                    table = _parquet().ParquetFile(stream).read_row_group(group, columns=self.columns)
                except (_arrow().ArrowInvalid, OSError) as error:
                    if isinstance(error, OSError) and error.errno is not None:
                        raise
                    raise _core.CorruptionError(f"{shard_name}: {error}") from error
            self._tables.keep(shard, table, table.nbytes)
        return list(table_rows(table.slice(begin, end - begin), shard_name, begin))


def _parquet() -> Any:
    _arrow()
    from pyarrow import parquet

    return parquet


class Arrow(_Files):
    """Rows of Arrow's files (streams and files), mapped into memory: what the package datasets keeps."""

    def _reset(self) -> None:
        self._tables: list[Any] = []

    def _open(self) -> list[tuple[str, int]]:
        self._tables = [self._map(name) for name in self.files]
        return [(name, table.num_rows) for name, table in zip(self.files, self._tables, strict=True)]

    def _map(self, name: str) -> Any:
        pyarrow = _arrow()
        if "://" in name:
            with open_file(name, "rb") as file:
                source = pyarrow.BufferReader(file.read())
        else:
            if not os.path.exists(name):
                raise FileNotFoundError(f"{name}: no such file")
            source = pyarrow.memory_map(name)
        try:
            try:
                table = pyarrow.ipc.open_file(source).read_all()
            except pyarrow.ArrowInvalid:
                source.seek(0)
                table = pyarrow.ipc.open_stream(source).read_all()
        except pyarrow.ArrowInvalid as error:
            raise _core.CorruptionError(f"{name}: {error}") from error
        self._check_columns(name, table.column_names)
        return table if self.columns is None else table.select(self.columns)

    def total_bytes(self) -> int:
        self.shards()
        return sum(table.nbytes for table in self._tables)

    def read(self, shard: int, begin: int, end: int) -> list[Mapping[str, Any] | Exception]:
        name = self.shards()[shard][0]
        return list(table_rows(self._tables[shard].slice(begin, end - begin), name, begin))


class Arrays(_Files):
    """Rows of .npy and .npz: the first dimension counts them. A .npy is mapped into memory, and its column is 'array'; a
    .npz is read whole, and its columns are its arrays."""

    def _reset(self) -> None:
        self._arrays: list[dict[str, npt.NDArray[Any]]] = []

    def _open(self) -> list[tuple[str, int]]:
        self._arrays = [self._load(name) for name in self.files]
        return [(name, len(next(iter(arrays.values())))) for name, arrays in zip(self.files, self._arrays, strict=True)]

    def _load(self, name: str) -> dict[str, npt.NDArray[Any]]:
        try:
            if name.endswith(".npy") and "://" not in name:
                arrays = {"array": np.load(name, mmap_mode="r", allow_pickle=False)}
            else:
                with open_file(name, "rb") as file:
                    loaded = np.load(file, allow_pickle=False)
                    arrays = {"array": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
        except (ValueError, EOFError) as error:
            raise _core.CorruptionError(f"{name}: {error}") from error
        self._check_columns(name, arrays)
        if self.columns is not None:
            arrays = {column: arrays[column] for column in self.columns}
        sizes = {len(array) if array.ndim else -1 for array in arrays.values()}
        if len(sizes) != 1 or -1 in sizes:
            raise ValueError(f"{name}: its arrays have other numbers of rows: {sorted(sizes)}")
        return arrays

    def total_bytes(self) -> int:
        self.shards()
        return sum(array.nbytes for arrays in self._arrays for array in arrays.values())

    def read(self, shard: int, begin: int, end: int) -> list[Mapping[str, Any] | Exception]:
        name = self.shards()[shard][0]
        columns = {column: array[begin:end] for column, array in self._arrays[shard].items()}
        return [
            {KEY: f"{name}:{begin + row}", **{column: array[row] for column, array in columns.items()}}
            for row in range(end - begin)
        ]


_MDS_DTYPES = {
    8: "u1", 9: "i1", 16: "u2", 17: "i2", 18: "f2", 32: "u4", 33: "i4", 34: "f4", 64: "u8", 65: "i8", 66: "f8",
}  # fmt: skip


def _mds_array(data: bytes, rest: str) -> npt.NDArray[Any]:
    """An array whose dtype and shape are in the encoding's name or, where they are not, before its values."""
    named = rest.split(":") if rest else []
    at = 0
    if named:
        dtype = np.dtype(named[0]).newbyteorder("<")
    else:
        dtype, at = np.dtype("<" + _MDS_DTYPES[data[0]]), 1
    if len(named) > 1:
        shape = [int(side) for side in named[1].split(",")]
    else:
        dimensions, width = data[at] >> 2, 1 << (data[at] & 3)
        at += 1
        shape = np.frombuffer(data, f"<u{width}", dimensions, at).tolist()
        at += dimensions * width
    return np.frombuffer(data, dtype, offset=at).reshape(shape)


def _mds_value(encoding: str, data: bytes) -> Any:
    kind, _, rest = encoding.partition(":")
    if kind in ("bytes", "jpeg", "png", "pkl"):  # a pickle is not opened
        return data
    if kind in ("str", "str_decimal"):
        return data.decode()
    if kind == "json":
        return json.loads(data)
    if kind == "str_int":
        return int(data)
    if kind == "str_float":
        return float(data)
    if kind == "ndarray":
        return _mds_array(data, rest)
    if kind == "pil":
        width, height, mode_bytes = struct.unpack_from("<3I", data)
        mode = data[12 : 12 + mode_bytes].decode()
        if mode not in ("L", "RGB", "RGBA"):
            raise ValueError(f"a picture in the mode {mode}; L, RGB and RGBA are read")
        sides = (height, width) if mode == "L" else (height, width, len(mode))
        return np.frombuffer(data, np.uint8, offset=12 + mode_bytes).reshape(sides)
    if kind != "int" and not kind.startswith(("int", "uint", "float")):
        raise ValueError(f"an unknown encoding, {encoding}")
    dtype = "<i8" if kind == "int" else np.dtype(kind).newbyteorder("<")
    return np.frombuffer(data, dtype)[0]


class Mds(_Files):
    """Rows of folders that MosaicML Streaming wrote (index.json and shards in MDS), as they are. A sample is one range of
    a shard; a compressed shard is read whole."""

    def _reset(self) -> None:
        self._in_index: list[tuple[str, dict[str, Any]]] = []
        self._offsets: dict[int, npt.NDArray[np.uint32]] = {}
        self._unpacked: _Recent[bytes] = _Recent(256 << 20)

    def _open(self) -> list[tuple[str, int]]:
        self._in_index = []
        for folder in self.files:
            name = f"{folder.rstrip('/')}/index.json"
            with open_file(name, "rb") as file:
                try:
                    shards = json.loads(file.read())["shards"]
                except (ValueError, KeyError) as error:
                    raise _core.CorruptionError(f"{name}: {error}") from error
            for facts in shards:
                if facts["format"] != "mds":
                    raise ValueError(f"{name}: shards of the format {facts['format']}; mds is read")
                self._check_columns(name, facts["column_names"])
                self._in_index.append((folder.rstrip("/"), facts))
        return [(f"{folder}/{facts['raw_data']['basename']}", facts["samples"]) for folder, facts in self._in_index]

    def total_bytes(self) -> int:
        self.shards()
        return sum(int(facts["raw_data"]["bytes"]) for _, facts in self._in_index)

    def _bytes(self, shard: int, begin: int, end: int) -> bytes:
        """[begin, end) of a shard."""
        folder, facts = self._in_index[shard]
        packed = facts.get("zip_data")
        if not packed:
            with open_file(f"{folder}/{facts['raw_data']['basename']}", "rb") as file:
                file.seek(begin)
                return file.read(end - begin)
        whole = self._unpacked.recall(shard)
        if whole is None:
            name = f"{folder}/{packed['basename']}"
            codec = facts["compression"].split(":")[0]
            with open_file(name, "rb") as file:
                data = file.read()
            try:
                whole = _arrow().decompress(
                    data, decompressed_size=facts["raw_data"]["bytes"], codec={"br": "brotli", "gz": "gzip"}.get(codec, codec),
                    asbytes=True,
                )  # fmt: skip
            except (OSError, ValueError) as error:
                raise _core.CorruptionError(f"{name}: {error}") from error
            self._unpacked.keep(shard, whole, len(whole))
        return whole[begin:end]

    def _shard_offsets(self, shard: int) -> npt.NDArray[np.uint32]:
        with self._lock:
            if shard not in self._offsets:
                name, samples = self.shards()[shard]
                head = np.frombuffer(self._bytes(shard, 0, 4 * (samples + 2)), "<u4")
                size = self._in_index[shard][1]["raw_data"]["bytes"]
                if len(head) != samples + 2 or head[0] != samples or head[-1] != size or (np.diff(head[1:]) < 0).any():
                    raise _core.CorruptionError(f"{name}: its head is not that of {samples} samples in {size} bytes")
                self._offsets[shard] = head[1:]
            return self._offsets[shard]

    def read(self, shard: int, begin: int, end: int) -> list[Mapping[str, Any] | Exception]:
        name = self.shards()[shard][0]
        offsets = self._shard_offsets(shard)[begin : end + 1].astype(np.int64)
        data = self._bytes(shard, int(offsets[0]), int(offsets[-1]))
        rows: list[Mapping[str, Any] | Exception] = []
        for row, (first, last) in enumerate(itertools.pairwise((offsets - offsets[0]).tolist())):
            try:
                rows.append({KEY: f"{name}:{begin + row}", **self._sample(shard, data[first:last])})
            except (ValueError, KeyError, IndexError, struct.error) as error:
                rows.append(_core.CorruptionError(f"{name}: sample {begin + row}: {error}"))
        return rows

    def _sample(self, shard: int, data: bytes) -> dict[str, Any]:
        facts = self._in_index[shard][1]
        sizes = facts["column_sizes"]
        open_sizes = sum(size is None for size in sizes)
        given = iter(struct.unpack_from(f"<{open_sizes}I", data))
        at = 4 * open_sizes
        sample = {}
        for column, encoding, size in zip(facts["column_names"], facts["column_encodings"], sizes, strict=True):
            bytes_of = next(given) if size is None else size
            if self.columns is None or column in self.columns:
                sample[column] = _mds_value(encoding, data[at : at + bytes_of])
            at += bytes_of
        if at != len(data):
            raise ValueError(f"{len(data)} bytes, its columns take {at}")
        return sample


_ENDINGS: dict[str, type[_Files]] = {
    ".jsonl": JsonLines, ".ndjson": JsonLines, ".parquet": Parquet, ".arrow": Arrow, ".feather": Arrow,
    ".npy": Arrays, ".npz": Arrays,
}  # fmt: skip


def _dataset_files(folder: str) -> list[str] | None:
    """The Arrow files of a folder that the package datasets wrote; None: it is none. Raises ValueError."""
    if os.path.exists(os.path.join(folder, "dataset_dict.json")):
        with open(os.path.join(folder, "dataset_dict.json")) as file:
            splits = json.load(file).get("splits", [])
        raise ValueError(
            f"{folder}: holds the splits {', '.join(splits)}; name one: {folder}/{(splits or ['train'])[0]}"
        )
    state = os.path.join(folder, "state.json")
    if os.path.exists(state):
        with open(state) as file:
            facts = json.load(file)
        if facts.get("_indices_data_files") or facts.get("_indices_files"):
            raise ValueError(f"{folder}: its rows are in another order than its files; save it after flatten_indices()")
        return [os.path.join(folder, entry["filename"]) for entry in facts["_data_files"]]
    if os.path.exists(os.path.join(folder, "dataset_info.json")):  # a folder of its cache
        found = sorted(name for name in os.listdir(folder) if name.endswith(".arrow") and not name.startswith("cache-"))
        return [os.path.join(folder, name) for name in found] or None
    return None


def _is_mds(folder: str) -> bool:
    """Whether it is a folder that MosaicML Streaming wrote."""
    if folder.endswith((".tar", ".bin")) or any(mark in folder for mark in "*?[{"):
        return False
    if "://" not in folder and not os.path.isdir(folder):
        return False
    try:
        with open_file(f"{folder.rstrip('/')}/index.json", "rb") as file:
            return isinstance(json.loads(file.read()).get("shards"), list)
    except (OSError, ValueError, AttributeError):
        return False


def row_source(paths: Sequence[str], columns: Sequence[str] | None) -> SampleSource | None:
    """What reads these paths, where they are rows; None: they are tars. Raises ValueError (several kinds)."""
    kinds: dict[type[_Files] | None, list[str]] = {}
    for path in paths:
        kind = next((kind for ending, kind in _ENDINGS.items() if path.lower().endswith(ending)), None)
        files = None if kind or "://" in path or not os.path.isdir(path) else _dataset_files(path)
        if files is not None:
            kinds.setdefault(Arrow, []).extend(files)
        elif kind is None and _is_mds(path):
            kinds.setdefault(Mds, []).append(path)
        elif kind is not None:
            kinds.setdefault(kind, []).extend(_core.find_files([path]))
        else:
            kinds.setdefault(None, []).append(path)
    if len(kinds) > 1:
        raise ValueError("files of several kinds: give each kind an mr.Source of its own")
    ((kind, files),) = kinds.items() or ((None, []),)
    return None if kind is None else kind(files or [], columns)


def resolve_source(shards: Any, columns: Sequence[str] | None) -> SampleSource | None:
    """The same of what a user gave: a path, several, or a SampleSource."""
    if isinstance(shards, SampleSource):
        return shards
    listed = [shards] if isinstance(shards, (str, os.PathLike)) else list(shards)
    if not all(isinstance(path, (str, os.PathLike)) for path in listed):
        raise TypeError("SampleLoader: shards are paths, or one SampleSource")
    return row_source([os.fspath(path) for path in listed], columns)
