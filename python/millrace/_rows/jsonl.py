# SPDX-License-Identifier: Apache-2.0
"""Reads rows of JSON lines."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace import _core
from millrace._rows.base import Files
from millrace.sources import KEY, Json, Null

Lines = npt.NDArray[np.int64]
_CHUNK = 8 << 20
_NEWLINE = 10
_IS_TEXT = np.ones(256, bool)
_IS_TEXT[list(b" \t\n\r\v\f")] = False


# The kinds of JsonColumns.
_NULL, _BOOL, _INTEGER, _FLOAT, _OTHER, _LARGE = 1, 2, 4, 8, 16, 32
_NUMBERS = _BOOL | _INTEGER | _FLOAT


def _kind_of(value: Any) -> int:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return _INTEGER if -(10**18) < value < 10**18 else _INTEGER | _LARGE
    return _FLOAT if isinstance(value, float) else _OTHER


class _Columns:
    """The kinds of values that each column of a file has, found line by line."""

    def __init__(self) -> None:
        self._plain = _core.JsonColumns()
        self._unread: dict[str, list[int]] = {}  # kinds and rows, of the lines that only Python reads
        self._rows = 0
        self._tail = b""

    def add(self, data: bytes) -> None:
        lines, newline, tail = data.rpartition(b"\n")
        if not newline:
            self._tail += data
            return
        self._add_lines(self._tail + lines)
        self._tail = tail

    def _add_lines(self, lines: bytes) -> None:
        for line in self._plain.add(lines):
            try:
                row = json.loads(line)
            except ValueError:
                continue  # an error where the row is read
            if isinstance(row, dict):
                self._rows += 1
                for name, value in row.items():
                    found = self._unread.setdefault(name, [0, 0])
                    found[0] |= _kind_of(value)
                    found[1] += 1

    def finish(self) -> dict[str, int] | None:
        """Returns the kinds of each column; None: there are too many columns. A column that some rows lack has nulls."""
        self._add_lines(self._tail)
        columns = self._plain.columns()
        rows = self._plain.rows + self._rows
        if self._plain.rows and not columns:
            return None
        found = {}
        for name in columns.keys() | self._unread.keys():
            kinds, there = columns.get(name, (0, 0))
            more, also = self._unread.get(name, (0, 0))
            found[name] = kinds | more | (_NULL if there + also < rows else 0)
        return found


def _type_of(kinds: int) -> np.dtype[Any] | None:
    """Returns the dtype of a column that has values of these kinds; None: it has values of several kinds, or integers
    that int64 may not represent, and stays JSON."""
    kinds &= ~_NULL
    by_kinds = {_BOOL: np.bool_, _INTEGER: np.int64, _FLOAT: np.float64, _INTEGER | _FLOAT: np.float64}
    return np.dtype(by_kinds[kinds]) if kinds in by_kinds else None


def find_lines(reader: _core.ObjectReader) -> tuple[Lines, str, dict[str, int] | None]:
    """Returns where each non-blank line begins and ends (after its newline), a hash of the content, and the kinds of
    values in each column."""
    digest = hashlib.sha256()
    columns = _Columns()
    found: list[Lines] = []
    begin, is_full = 0, False  # the state of the line that continues in this chunk
    for at in range(0, reader.size, _CHUNK):
        data = reader.read(at, _CHUNK)
        digest.update(data)
        columns.add(data)
        chunk = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(chunk == _NEWLINE) + 1
        starts = np.concatenate(([0], ends))
        if starts[-1] == len(chunk):
            starts = starts[:-1]
        full = np.logical_or.reduceat(_IS_TEXT[chunk], starts)
        full[0] |= is_full
        begins = starts + at
        begins[0] = begin
        done = len(ends)
        whole = np.stack([begins[:done], ends + at], axis=1)[full[:done]]
        found.append(whole.astype(np.int64))
        begin, is_full = (int(begins[done]), bool(full[done])) if done < len(starts) else (at + len(chunk), False)
    if is_full:
        found.append(np.array([[begin, reader.size]], np.int64))
    lines = np.concatenate(found) if found else np.zeros((0, 2), np.int64)
    return lines, digest.hexdigest(), columns.finish()


def _dtypes(of_files: list[dict[str, int] | None]) -> dict[str, np.dtype[Any] | None]:
    """Returns the dtype of each column that has numbers in some file."""
    kinds: dict[str, int] = {}
    for of_file in of_files:
        if of_file is None:
            return {}
        for column, found in of_file.items():
            kinds[column] = kinds.get(column, 0) | found
    return {column: _type_of(found) for column, found in kinds.items() if found & _NUMBERS}


class JsonLines(Files):
    """Rows of JSON lines; each line is an object. One process of the node reads a file once to find its lines and the
    types of its columns. Blank lines are not rows. A column of numbers has one dtype in all files: int64, float64 where
    any number has a fraction, or bool. Columns that mix numbers and other values stay JSON."""

    def _reset(self) -> None:
        self._lines: list[Lines] = []
        self._dtypes: dict[str, np.dtype[Any] | None] = {}  # of the columns that have numbers

    def _open(self) -> tuple[list[tuple[str, int]], list[str]]:
        with np.load(io.BytesIO(self._kept("typed lines", self._find_all)), allow_pickle=False) as found:
            self._lines = [found[f"lines{number}"] for number in range(len(self.files))]
            content = found["content"].tolist()
            self._dtypes = _dtypes([json.loads(text) for text in found["kinds"].tolist()])
        return [(name, len(lines)) for name, lines in zip(self.files, self._lines, strict=True)], content

    def _find_all(self) -> bytes:
        found = self._each(lambda name: find_lines(self.objects.reader(name)))
        out = io.BytesIO()
        arrays = {f"lines{number}": lines for number, (lines, _, _) in enumerate(found)}
        texts = {
            "content": np.array([digest for _, digest, _ in found]),
            "kinds": np.array([json.dumps(kinds) for _, _, kinds in found]),
        }
        np.savez(out, **texts, **arrays)  # type: ignore[arg-type]
        return out.getvalue()

    def read(self, shard: int, begin: int, end: int) -> list[Mapping[str, Any] | Exception]:
        name = self.shards()[shard][0]
        lines = self._lines[shard][begin:end]
        first, last = int(lines[0][0]), int(lines[-1][1])
        data = self.objects.read(name, first, last)
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
            rows.append({KEY: f"{name}:{number}", **row, **self._typed(row)})
        return rows

    def _typed(self, row: dict[str, Any]) -> dict[str, Any]:
        """Returns the numbers of a row in the types of their columns."""
        typed: dict[str, Any] = {}
        for column, dtype in self._dtypes.items():
            if self.columns is not None and column not in self.columns:
                continue
            value = row.get(column)
            if dtype is not None:
                typed[column] = Null(dtype) if value is None else dtype.type(value)
            elif value is not None:
                typed[column] = Json(value)
        return typed

    def total_bytes(self) -> int:
        self.shards()
        return sum(int(lines[-1][1]) for lines in self._lines if len(lines))
