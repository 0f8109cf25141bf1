# SPDX-License-Identifier: Apache-2.0
"""Reads rows of .npy and .npz files."""

from __future__ import annotations

import io
import json
import logging
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace import _core
from millrace._rows.base import Files
from millrace._rows.objects import Recent, fingerprint
from millrace.sources import KEY

_logger = logging.getLogger("millrace")
_HEAD = 64 << 10  # more than any header of a .npy that NumPy itself reads


@dataclass
class _Place:
    """The place of the values of an array."""

    dtype: str
    shape: list[int]
    begin: int  # the first byte of the values in the file; -1: they are in a ZIP file, or in Fortran order
    member: str  # the member of a .npz


def _place_of(head: bytes, at: int, member: str) -> _Place:
    """Returns the place that the first bytes of a .npy describe. Raises ValueError."""
    stream = io.BytesIO(head)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("its values are Python objects, which are not read")
    return _Place(dtype.str, list(shape), -1 if is_fortran and len(shape) > 1 else at + stream.tell(), member)


class Arrays(Files):
    """Rows of .npy and .npz files. The rows are counted along the first dimension. The column of a .npy is 'array'; the
    columns of a .npz are its arrays. A .npy on this machine is mapped into memory; other .npy files are read by ranges.
    An array of a .npz is read whole."""

    def _reset(self) -> None:
        self._places: list[dict[str, _Place]] = []
        self._mapped: dict[int, npt.NDArray[Any]] = {}
        self._whole: Recent[npt.NDArray[Any]] = Recent(self.settings.kept_bytes)
        self._told = False

    def _open(self) -> tuple[list[tuple[str, int]], list[str]]:
        facts = json.loads(self._kept("arrays", lambda: json.dumps(self._each(self._facts_of)).encode()))
        self._places = [{column: _Place(*place) for column, place in places.items()} for places, _ in facts]
        shards = []
        for number, (name, places) in enumerate(zip(self.files, self._places, strict=True)):
            self._check_columns(name, places)
            chosen = {column: places[column] for column in self.columns or places}
            self._check_types(name, {column: place.dtype for column, place in chosen.items()})
            sizes = {place.shape[0] if place.shape else -1 for place in chosen.values()}
            if len(sizes) != 1 or -1 in sizes:
                raise ValueError(f"{name}: its arrays have other numbers of rows: {sorted(sizes)}")
            self._places[number] = chosen
            if name.endswith(".npy") and "://" not in name:
                self._mapped[number] = np.load(name, mmap_mode="r", allow_pickle=False)
            shards.append((name, sizes.pop()))
        return shards, [content for _, content in facts]

    def _facts_of(self, name: str) -> tuple[dict[str, list[Any]], str]:
        reader = self.objects.reader(name)
        try:
            if not name.endswith(".npz"):
                places = {"array": _place_of(reader.read(0, _HEAD), 0, "")}
            else:
                places = self._members(name)
            for column, place in places.items():
                size = np.dtype(place.dtype).itemsize * int(np.prod(place.shape))
                if place.begin >= 0 and place.begin + size > reader.size:
                    raise ValueError(f"{column}: cut off: its values need {size} bytes from byte {place.begin} on")
        except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
            raise _core.CorruptionError(f"{name}: {error}") from error
        facts = {column: [p.dtype, p.shape, p.begin, p.member] for column, p in places.items()}
        return facts, fingerprint(reader)

    def _members(self, name: str) -> dict[str, _Place]:
        places = {}
        with self.objects.file(name) as stream, zipfile.ZipFile(stream) as archive:
            for info in archive.infolist():
                with archive.open(info) as member:
                    place = _place_of(member.read(_HEAD), 0, info.filename)
                place.begin = -1  # the checksum of a ZIP covers the whole array
                places[info.filename.removesuffix(".npy")] = place
        return places

    def total_bytes(self) -> int:
        self.shards()
        places = [place for columns in self._places for place in columns.values()]
        return sum(np.dtype(place.dtype).itemsize * int(np.prod(place.shape)) for place in places)

    def _load(self, shard: int, column: str) -> npt.NDArray[Any]:
        """Reads an array whole, because it cannot be read by ranges."""
        found = self._whole.recall((shard, column))
        if found is None:
            name = self.files[shard]
            try:
                with self.objects.file(name) as stream:
                    loaded = np.load(stream, allow_pickle=False)
                    found = loaded if isinstance(loaded, np.ndarray) else loaded[column]
            except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
                raise _core.CorruptionError(f"{name}: {column}: {error}") from error
            self._tell_of_size(name, found.nbytes)
            self._whole.keep((shard, column), found, found.nbytes)
        return found

    def _tell_of_size(self, name: str, size: int) -> None:
        if size * len(self._places[0]) > self.settings.kept_bytes and not self._told:
            self._told = True
            _logger.warning(
                "%s: arrays of %d MB are read again and again, since %d MB may be kept; write .npy, which is read by "
                "ranges, or smaller files",
                name, size // 1_000_000, self.settings.kept_bytes // 1_000_000,
            )  # fmt: skip

    def _values(self, shard: int, column: str, begin: int, end: int) -> npt.NDArray[Any]:
        place = self._places[shard][column]
        if shard in self._mapped:
            return self._mapped[shard][begin:end]
        if place.begin < 0:
            return self._load(shard, column)[begin:end]
        shape = place.shape[1:]
        size = np.dtype(place.dtype).itemsize * int(np.prod(shape))
        data = self.objects.read(self.files[shard], place.begin + begin * size, place.begin + end * size)
        return np.frombuffer(data, place.dtype).reshape(end - begin, *shape)

    def read(self, shard: int, begin: int, end: int) -> list[Mapping[str, Any] | Exception]:
        name = self.shards()[shard][0]
        columns = {column: self._values(shard, column, begin, end) for column in self._places[shard]}
        return [
            {KEY: f"{name}:{begin + row}", **{column: array[row] for column, array in columns.items()}}
            for row in range(end - begin)
        ]
