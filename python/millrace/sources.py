# SPDX-License-Identifier: Apache-2.0
"""Where samples come from that are in no tar: an object of yours. `_rows/` has those of files."""

from __future__ import annotations

import datetime
import hashlib
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

KEY = "__key__"


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
        key; without it, SHARD:NUMBER. Return an exception in place of a damaged sample: raised by the
        loader, or a reason to let another sample take its place (on_bad="quarantine")."""

    def total_bytes(self) -> int:
        """Approximate bytes of all samples; 0: unknown. Changes the order."""
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
