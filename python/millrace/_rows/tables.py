# SPDX-License-Identifier: Apache-2.0
"""Reads rows of Parquet and Arrow files."""

from __future__ import annotations

import bisect
import hashlib
import io
import itertools
import json
import logging
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace import _core
from millrace._rows.base import Files
from millrace._rows.objects import Recent, fingerprint
from millrace.sources import KEY, Holes, Null

_logger = logging.getLogger("millrace")
PARQUET_WINDOW = 32 << 20  # bytes of a row group that are shuffled together
_TAIL = 64 << 10  # bytes at the end of a Parquet file: enough for most footers
_HOLE = 8 << 10  # bytes between two column chunks that are read with them
_RANGE = 32 << 20  # bytes that are read as one range, unless one column chunk has more


def arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("tables in Parquet and Arrow need the package pyarrow: pip install pyarrow") from error
    return pyarrow


def is_numeric(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def is_list(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def number_types(schema: Any) -> dict[str, str]:
    """Returns the types of the columns of a schema that become arrays: numbers and lists of numbers."""
    found = {}
    for field in schema:
        kind = getattr(field.type, "storage_type", field.type)
        if is_numeric(kind) or (is_list(kind) and is_numeric(kind.value_type)):
            found[field.name] = str(kind)
    return found


def _numbers(column: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Returns the numbers of an array of Arrow and which of them are nulls; None: none is. The type is Arrow's, whether
    there are nulls or not."""
    if column.null_count == 0:
        return column.to_numpy(zero_copy_only=False), None
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    filled = (
        column if arrow().types.is_floating(column.type) else column.fill_null(False if column.type == "bool" else 0)
    )
    return filled.to_numpy(zero_copy_only=False), is_null


def _lists(column: Any) -> list[Any]:
    """Returns the values of a column of lists of numbers: an array for each row, with Holes for nulls."""
    types = arrow().types
    if types.is_fixed_size_list(column.type):
        size = column.type.list_size
        flat, begin = column.values, column.offset * size
        bounds = [(begin + row * size, begin + (row + 1) * size) for row in range(len(column))]
    else:
        flat, bounds = column.values, list(itertools.pairwise(column.offsets.to_numpy().tolist()))
    first, last = (bounds[0][0], bounds[-1][1]) if bounds else (0, 0)
    values, is_null = _numbers(flat.slice(first, last - first))
    bounds = [(begin - first, end - first) for begin, end in bounds]
    if is_null is None:
        rows: list[Any] = [values[begin:end] for begin, end in bounds]
    else:
        rows = [Holes(values[a:b], is_null[a:b]) if is_null[a:b].any() else values[a:b] for a, b in bounds]
    if column.null_count > 0:
        null = Null(values.dtype)
        rows = [row if valid else null for row, valid in zip(rows, column.is_valid().to_pylist(), strict=True)]
    return rows


def _column_values(column: Any) -> list[Any]:
    """Returns the values of a column of a table. Numbers and lists of numbers are arrays of the column's type that share
    the table's memory, and Null and Holes where it has nulls."""
    pyarrow = arrow()
    types = pyarrow.types
    if isinstance(column, pyarrow.ChunkedArray):
        return [value for chunk in column.chunks for value in _column_values(chunk)]
    kind = column.type
    if isinstance(column, pyarrow.ExtensionArray):
        return _column_values(column.storage)
    if types.is_dictionary(kind):
        return _column_values(column.dictionary_decode())
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_duration(kind):
        return list(column.to_numpy(zero_copy_only=False))  # a null is NaT
    if is_numeric(kind):
        values, is_null = _numbers(column)
        if is_null is None:
            return list(values)
        null = Null(values.dtype)
        return [null if gap else value for value, gap in zip(values, is_null, strict=True)]
    if is_list(kind) and is_numeric(kind.value_type):
        return _lists(column)
    if types.is_decimal(kind):
        return [None if value is None else format(value, "f") for value in column.to_pylist()]
    # The form in which the package datasets stores pictures and sounds.
    if types.is_struct(kind) and {field.name for field in kind} == {"bytes", "path"}:
        return list(column.field("bytes").to_pylist())
    return list(column.to_pylist())


def _readable_values(column: Any) -> list[Any]:
    """Returns the values of a column. A value that Python cannot represent, such as a date after the year 9999, is a
    ValueError in its place."""
    try:
        return _column_values(column)
    except (OverflowError, ValueError):
        values: list[Any] = []
        for row in range(len(column)):
            try:
                values += _column_values(column.slice(row, 1))
            except (OverflowError, ValueError) as error:
                values.append(ValueError(str(error)))
        return values


def table_rows(table: Any, name: str, begin: int) -> list[Mapping[str, Any] | Exception]:
    """Returns the rows of an Arrow table whose first row is number `begin` of `name`."""
    columns = {column: _readable_values(table.column(column)) for column in table.column_names}
    rows: list[Mapping[str, Any] | Exception] = []
    for row in range(table.num_rows):
        values = {column: of_column[row] for column, of_column in columns.items()}
        bad = next((column for column, value in values.items() if isinstance(value, Exception)), None)
        if bad is None:
            rows.append({KEY: f"{name}:{begin + row}", **values})
        else:
            rows.append(_core.CorruptionError(f"{name}: row {begin + row}: column {bad}: {values[bad]}"))
    return rows


def _parquet() -> Any:
    arrow()
    from pyarrow import parquet

    return parquet


def _chunk_ranges(group: Any, columns: list[str] | None) -> list[tuple[int, int]]:
    """Returns where the column chunks of a row group lie: (begin, end), ascending and apart. columns: the names of the
    columns of the table; None: all."""
    chunks = []
    for number in range(group.num_columns):
        chunk = group.column(number)
        if columns is None or chunk.path_in_schema.split(".")[0] in columns:
            dictionary = chunk.dictionary_page_offset
            begin = min(chunk.data_page_offset, dictionary or chunk.data_page_offset)
            chunks.append((begin, begin + chunk.total_compressed_size))
    ranges: list[tuple[int, int]] = []
    for begin, end in sorted(chunks):
        if ranges and begin - ranges[-1][1] <= _HOLE and end - ranges[-1][0] <= _RANGE:
            ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
        else:
            ranges.append((begin, end))
    return ranges


class _FetchedFile(io.RawIOBase):
    """An object of which some ranges have been read. Other bytes are read when they are asked for."""

    def __init__(self, reader: _core.ObjectReader, ranges: list[tuple[int, int]]) -> None:
        super().__init__()
        inside = [(begin, min(end, reader.size)) for begin, end in ranges if 0 <= begin < min(end, reader.size)]
        self._reader = reader
        self._begins = [begin for begin, _ in inside]
        self._pieces = reader.read_ranges(self._begins, [end - begin for begin, end in inside])
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._reader.size}[whence]
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        begin = self._position
        end = self._reader.size if size is None or size < 0 else min(begin + size, self._reader.size)
        piece = bisect.bisect_right(self._begins, begin) - 1
        at = begin - self._begins[piece] if piece >= 0 else 0
        if piece >= 0 and at + end - begin <= len(self._pieces[piece]):
            content = self._pieces[piece][at : at + end - begin]
        else:
            content = self._reader.read(begin, max(end - begin, 0))
        self._position += len(content)
        return content


class Parquet(Files):
    """Rows of Parquet files. A row group is read whole, and the shuffle reads its rows together, so it is decoded once
    per epoch. Each row group is a shard of the order."""

    def _reset(self) -> None:
        self._groups: list[tuple[str, int]] = []
        self._tables: Recent[Any] = Recent(self.settings.kept_bytes)
        self._footers: Recent[Any] = Recent(self.settings.kept_bytes // 4)
        self._bytes = 0
        self._told = False

    def _open(self) -> tuple[list[tuple[str, int]], list[str]]:
        facts = json.loads(self._kept("typed footers", lambda: json.dumps(self._each(self._facts_of)).encode()))
        self._groups, self._bytes, shards = [], 0, []
        for name, (columns, types, groups, _) in zip(self.files, facts, strict=True):
            self._check_columns(name, columns)
            self._check_types(name, types)
            for group, (rows, size) in enumerate(groups):
                if rows == 0:
                    continue
                self._groups.append((name, group))
                self._bytes += size
                shards.append((f"{name}#{group}", rows))
        return shards, [content for _, _, _, content in facts]

    def _facts_of(self, name: str) -> tuple[list[str], dict[str, str], list[tuple[int, int]], str]:
        """Returns the columns, the types of those that become arrays, the rows and bytes of each group, and a hash that
        identifies the content. The hash is made from the footer, which has the places of all data and, in most files,
        the least and the largest value of each column of a group."""
        footer, tail = self._footer(name)
        groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
        digest = hashlib.sha256(f"{self.objects.reader(name).size} ".encode() + tail).hexdigest()
        schema = footer.schema.to_arrow_schema()
        return schema.names, number_types(schema), [(group.num_rows, group.total_byte_size) for group in groups], digest

    def _footer(self, name: str) -> tuple[Any, bytes]:
        """Returns the metadata of a file and their bytes. For its metadata, pyarrow accepts the end of a file as a
        file."""
        size = self.objects.reader(name).size
        tail = self.objects.read(name, max(0, size - _TAIL), size)
        length = struct.unpack("<I", tail[-8:-4])[0] + 8 if len(tail) >= 8 else 0
        if tail[-4:] != b"PAR1" or length > size:
            raise _core.CorruptionError(
                f"{name}: it does not end as Parquet does: it is cut, encrypted or another file"
            )
        tail = tail[-length:] if length <= len(tail) else self.objects.read(name, size - length, size)
        try:
            return _parquet().read_metadata(arrow().BufferReader(tail)), tail
        except (arrow().ArrowInvalid, OSError) as error:
            raise _core.CorruptionError(f"{name}: {error}") from error

    @property
    def window_rows(self) -> int:  # type: ignore[override]
        # A window is a group if the group fits well into memory, so this is the size of the largest group.
        largest = max((samples for _, samples in self.shards()), default=0)
        rows = sum(samples for _, samples in self.shards())
        most = max(256, PARQUET_WINDOW * rows // max(self._bytes, 1))
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
            table = self._read_group(shard, shard_name)
            self._tables.keep(shard, table, table.nbytes)
        return table_rows(table.slice(begin, end - begin), shard_name, begin)

    def _read_group(self, shard: int, shard_name: str) -> Any:
        name, group = self._groups[shard]
        footer = self._footers.recall(name)
        if footer is None:
            footer, tail = self._footer(name)
            self._footers.keep(name, footer, 4 * len(tail))
        ranges = _chunk_ranges(footer.row_group(group), self.columns)
        with _FetchedFile(self.objects.reader(name), ranges) as stream:
            try:
                # A page without a checksum passes. No thread of Arrow gets the stream: it may still hold it when Python
                # ends, and a thread that then waits for the interpreter ends the process with SIGABRT.
                file = _parquet().ParquetFile(
                    stream, metadata=footer, pre_buffer=False, page_checksum_verification=True
                )
                return file.read_row_group(group, columns=self.columns, use_threads=False)
            except (arrow().ArrowInvalid, OSError) as error:
                if isinstance(error, OSError) and (error.errno is not None or isinstance(error, _core.CorruptionError)):
                    raise
                raise _core.CorruptionError(f"{shard_name}: {error}") from error


def _field(data: bytes, table: int, number: int) -> int:
    """Returns the place of a field of a flatbuffer's table; 0: the table lacks the field."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    at = 4 + 2 * number
    offset = struct.unpack_from("<H", data, vtable + at)[0] if at < struct.unpack_from("<H", data, vtable)[0] else 0
    return table + offset if offset else 0


_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3


class _Message:
    """One message of Arrow's IPC format (format/Message.fbs): its kind and its place."""

    def __init__(self, data: bytes, begin: int) -> None:
        root = struct.unpack_from("<I", data)[0]
        kind, header, body = _field(data, root, 1), _field(data, root, 2), _field(data, root, 3)
        self.kind = data[kind] if kind else 0
        self.begin = begin
        self.body_bytes = struct.unpack_from("<q", data, body)[0] if body else 0
        self.rows = 0
        if self.kind == _BATCH:
            batch = header + struct.unpack_from("<I", data, header)[0]
            rows = _field(data, batch, 0)
            self.rows = struct.unpack_from("<q", data, rows)[0] if rows else 0


def _messages(reader: _core.ObjectReader, name: str) -> Iterator[tuple[_Message, int]]:
    """Yields the messages of a file or a stream, each with its end."""
    at = 8 if reader.read(0, 6) == b"ARROW1" else 0
    while at + 4 <= reader.size:
        head = reader.read(at, 4096)
        before, length = 4, struct.unpack_from("<I", head)[0]
        if length == 0xFFFFFFFF:  # the format since version 0.15
            if len(head) < 8:
                break
            before, length = 8, struct.unpack_from("<I", head, 4)[0]
        if length == 0:
            return
        if at + before + length > reader.size:
            break
        whole = head if before + length <= len(head) else reader.read(at, before + length)
        try:
            message = _Message(whole[before : before + length], at)
        except (struct.error, IndexError) as error:
            raise _core.CorruptionError(f"{name}: no message of Arrow at byte {at}") from error
        end = at + before + length + message.body_bytes
        if message.body_bytes < 0 or message.rows < 0 or end > reader.size:
            break
        yield message, end
        at = end
    if at != reader.size:
        raise _core.CorruptionError(f"{name}: cut off in the message of Arrow that begins at byte {at}")


class Arrow(Files):
    """Rows of Arrow files and streams, which the package datasets uses. A file on this machine is mapped into memory.
    From other files, one batch is read at a time."""

    def _reset(self) -> None:
        self._tables: list[Any] = []
        self._batches: Recent[Any] = Recent(self.settings.kept_bytes)
        self._schemas: dict[int, Any] = {}

    def _open(self) -> tuple[list[tuple[str, int]], list[str]]:
        facts = json.loads(self._kept("batches", lambda: json.dumps(self._each(self._facts_of)).encode()))
        # For each file, where its batches begin and end and how many rows they have; for mapped files, nothing.
        self._places = [places for places, _ in facts]
        self._tables = [None if "://" in name else self._map(name) for name in self.files]
        shards = []
        for name, table, places in zip(self.files, self._tables, self._places, strict=True):
            shards.append((name, table.num_rows if table is not None else sum(rows for _, _, rows in places)))
        return shards, [content for _, content in facts]

    def _facts_of(self, name: str) -> tuple[list[tuple[int, int, int]], str]:
        reader = self.objects.reader(name)
        places: list[tuple[int, int, int]] = []
        if "://" in name:
            found = list(_messages(reader, name))
            if not found or found[0][0].kind != _SCHEMA:
                raise _core.CorruptionError(f"{name}: it does not begin with a schema: no file of Arrow, or a cut one")
            if any(message.kind == _DICTIONARY for message, _ in found):
                raise ValueError(
                    f"{name}: columns with dictionaries are read from files of this machine only: copy it there first"
                )
            places = [(found[0][0].begin, found[0][1], 0)]
            places += [(message.begin, end, message.rows) for message, end in found if message.kind == _BATCH]
        return places, fingerprint(reader)

    def _map(self, name: str) -> Any:
        pyarrow = arrow()
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
        self._check_types(name, number_types(table.schema))
        return table if self.columns is None else table.select(self.columns)

    def total_bytes(self) -> int:
        self.shards()
        tables = sum(table.nbytes for table in self._tables if table is not None)
        return tables + sum(end - begin for places in self._places for begin, end, _ in places)

    def _schema(self, shard: int) -> Any:
        with self._lock:
            if shard not in self._schemas:
                begin, end, _ = self._places[shard][0]
                data = self.objects.read(self.files[shard], begin, end)
                schema = arrow().ipc.read_schema(arrow().py_buffer(data))
                self._check_columns(self.files[shard], schema.names)
                self._check_types(self.files[shard], number_types(schema))
                self._schemas[shard] = schema
            return self._schemas[shard]

    def _batch(self, shard: int, number: int) -> Any:
        batch = self._batches.recall((shard, number))
        if batch is None:
            pyarrow, name = arrow(), self.files[shard]
            begin, end, _ = self._places[shard][number]
            data = self.objects.read(name, begin, end)
            try:
                batch = pyarrow.ipc.read_record_batch(pyarrow.py_buffer(data), self._schema(shard))
            except (pyarrow.ArrowInvalid, OSError) as error:
                raise _core.CorruptionError(f"{name}: the batch at byte {begin}: {error}") from error
            self._batches.keep((shard, number), batch, batch.nbytes)
        return batch if self.columns is None else batch.select(self.columns)

    def read(self, shard: int, begin: int, end: int) -> list[Mapping[str, Any] | Exception]:
        name = self.shards()[shard][0]
        table = self._tables[shard]
        if table is not None:
            return table_rows(table.slice(begin, end - begin), name, begin)
        rows: list[Mapping[str, Any] | Exception] = []
        first = 0
        for number, (_, _, count) in enumerate(self._places[shard]):
            if count and first < end and first + count > begin:
                low, high = max(begin - first, 0), min(end - first, count)
                rows += table_rows(self._batch(shard, number).slice(low, high - low), name, first + low)
            first += count
        return rows
