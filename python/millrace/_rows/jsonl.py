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
from millrace.sources import KEY

Lines = npt.NDArray[np.int64]
_CHUNK = 8 << 20
_NEWLINE = 10
_IS_TEXT = np.ones(256, bool)
_IS_TEXT[list(b" \t\n\r\v\f")] = False


def find_lines(reader: _core.ObjectReader) -> tuple[Lines, str]:
    """Returns where each non-blank line begins and ends (after its newline), and a hash of the content."""
    digest = hashlib.sha256()
    found: list[Lines] = []
    begin, is_full = 0, False  # the state of the line that continues in this chunk
    for at in range(0, reader.size, _CHUNK):
        data = reader.read(at, _CHUNK)
        digest.update(data)
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
    return np.concatenate(found) if found else np.zeros((0, 2), np.int64), digest.hexdigest()


class JsonLines(Files):
    """Rows of JSON lines; each line is an object. One process of the node reads a file once to find its lines. Blank
    lines are not rows."""

    def _reset(self) -> None:
        self._lines: list[Lines] = []

    def _open(self) -> tuple[list[tuple[str, int]], list[str]]:
        with np.load(io.BytesIO(self._kept("lines", self._find_all)), allow_pickle=False) as found:
            self._lines = [found[f"lines{number}"] for number in range(len(self.files))]
            content = found["content"].tolist()
        return [(name, len(lines)) for name, lines in zip(self.files, self._lines, strict=True)], content

    def _find_all(self) -> bytes:
        found = self._each(lambda name: find_lines(self.objects.reader(name)))
        out = io.BytesIO()
        arrays = {f"lines{number}": lines for number, (lines, _) in enumerate(found)}
        np.savez(out, content=np.array([digest for _, digest in found]), **arrays)  # type: ignore[arg-type]
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
            rows.append({KEY: f"{name}:{number}", **row})
        return rows

    def total_bytes(self) -> int:
        self.shards()
        return sum(int(lines[-1][1]) for lines in self._lines if len(lines))
