# SPDX-License-Identifier: Apache-2.0
"""Reads rows of folders that MosaicML Streaming wrote."""

from __future__ import annotations

import bz2
import hashlib
import itertools
import json
import logging
import os
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace import _core
from millrace._rows.base import Files
from millrace._rows.objects import Recent, once_a_node
from millrace._rows.tables import arrow
from millrace.sources import KEY

_logger = logging.getLogger("millrace")
_MDS_DTYPES = {
    8: "u1", 9: "i1", 16: "u2", 17: "i2", 18: "f2", 32: "u4", 33: "i4", 34: "f4", 64: "u8", 65: "i8", 66: "f8",
}  # fmt: skip


def _mds_array(data: bytes, rest: str) -> npt.NDArray[Any]:
    """Returns an array. Its dtype and shape are in the encoding's name or, if they are not, before its values."""
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


def _digest(algorithm: str, data: bytes) -> str | None:
    """Returns the hash of a shard in the form of index.json; None: the algorithm's package is missing."""
    if algorithm in hashlib.algorithms_available:
        return hashlib.new(algorithm, data).hexdigest()
    try:
        import xxhash
    except ImportError:
        return None
    if algorithm not in xxhash.algorithms_available:
        return None
    digest: str = getattr(xxhash, algorithm)(data).hexdigest()
    return digest


def _check_hashes(name: str, facts: Mapping[str, Any], data: bytes) -> None:
    """Compares the bytes of a file with their size and hashes in index.json. Raises CorruptionError."""
    if len(data) != facts["bytes"]:
        raise _core.CorruptionError(f"{name}: it has {len(data)} bytes, and {facts['bytes']} in index.json")
    for algorithm, expected in (facts.get("hashes") or {}).items():
        found = _digest(algorithm, data)
        if found is None:
            _logger.warning("%s: its hash is not checked: no package here has the algorithm %s", name, algorithm)
        elif found != expected:
            raise _core.CorruptionError(f"{name}: its {algorithm} is {found}, and {expected} in index.json")


def _unpacked_shard(data: bytes, codec: str, size: int) -> bytes:
    if codec == "bz2":  # pyarrow decompresses bz2 only as a stream
        return bz2.decompress(data)
    codec = {"br": "brotli", "gz": "gzip"}.get(codec, codec)
    whole: bytes = arrow().decompress(data, decompressed_size=size, codec=codec, asbytes=True)
    return whole


class Mds(Files):
    """Rows of folders that MosaicML Streaming wrote (index.json and shards in MDS), without conversion. A sample is one
    range of a shard. A compressed shard is read whole. If index.json has hashes of a shard, one process of the node reads
    the shard whole once and compares them."""

    def _reset(self) -> None:
        self._in_index: list[tuple[str, dict[str, Any]]] = []
        self._offsets: dict[int, npt.NDArray[np.uint32]] = {}
        self._unpacked: Recent[bytes] = Recent(self.settings.kept_bytes)
        self._proven: set[int] = set()

    def _open(self) -> tuple[list[tuple[str, int]], list[str]]:
        self._in_index = []
        content = []
        for folder in self.files:
            name = f"{folder.rstrip('/')}/index.json"
            data = self.objects.read(name, 0, self.objects.reader(name).size)
            content.append(hashlib.sha256(data).hexdigest())
            try:
                shards = json.loads(data)["shards"]
            except (ValueError, KeyError) as error:
                raise _core.CorruptionError(f"{name}: {error}") from error
            for facts in shards:
                if facts["format"] != "mds":
                    raise ValueError(f"{name}: shards of the format {facts['format']}; mds is read")
                self._check_columns(name, facts["column_names"])
                self._in_index.append((folder.rstrip("/"), facts))
        shards = [(f"{folder}/{facts['raw_data']['basename']}", facts["samples"]) for folder, facts in self._in_index]
        return shards, content

    def total_bytes(self) -> int:
        self.shards()
        return sum(int(facts["raw_data"]["bytes"]) for _, facts in self._in_index)

    def _bytes(self, shard: int, begin: int, end: int) -> bytes:
        """Returns bytes [begin, end) of a shard."""
        folder, facts = self._in_index[shard]
        packed = facts.get("zip_data")
        if not packed:
            name = f"{folder}/{facts['raw_data']['basename']}"
            self._prove(shard, name, facts["raw_data"])
            return self.objects.read(name, begin, end)
        whole = self._unpacked.recall(shard)
        if whole is None:
            name = f"{folder}/{packed['basename']}"
            codec = facts["compression"].split(":")[0]
            data = self.objects.read(name, 0, self.objects.reader(name).size)
            _check_hashes(name, packed, data)
            try:
                whole = _unpacked_shard(data, codec, facts["raw_data"]["bytes"])
            except (OSError, ValueError) as error:
                raise _core.CorruptionError(f"{name}: {error}") from error
            _check_hashes(name, facts["raw_data"], whole)
            self._unpacked.keep(shard, whole, len(whole))
        return whole[begin:end]

    def _prove(self, shard: int, name: str, facts: Mapping[str, Any]) -> None:
        """Compares a shard with its hashes in index.json, if that has any: once a node for this version of the file."""
        if not facts.get("hashes"):
            return

        def check() -> bytes:
            _check_hashes(name, facts, self.objects.read(name, 0, self.objects.reader(name).size))
            return b"same"

        with self._lock:
            if shard in self._proven:
                return
            version = self.objects.version(name)
            if version.endswith(" "):  # it does not identify the content
                check()
            else:
                path = name if "://" in name else os.path.abspath(name)
                once_a_node(json.dumps(["mds hashes", path, version, facts["hashes"]]), check)
            self._proven.add(shard)

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
