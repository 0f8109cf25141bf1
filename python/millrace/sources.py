# SPDX-License-Identifier: Apache-2.0
"""Defines sources of samples that are not in tars: SampleSource is for your own. `_rows/` has the sources for files."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

KEY = "__key__"


@dataclass(frozen=True)
class Null:
    """A null in a column of numbers, or of lists of numbers, of this dtype."""

    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Holes:
    """An array in which some items are nulls."""

    values: npt.NDArray[Any]
    is_null: npt.NDArray[np.bool_]  # of the same shape


@dataclass(frozen=True)
class Json:
    """A value that stays JSON, also where it is a number: its column has values of several kinds."""

    value: Any


def encode(value: Any) -> bytes:
    """Returns a value in the form that a loader keeps: bytes, str, numbers and arrays unchanged, other values as JSON.
    Raises TypeError."""
    if value is None:
        return b"n"
    if isinstance(value, str):
        return b"t" + value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return b"b" + bytes(value)
    if isinstance(value, (bool, int, float, np.ndarray, np.generic)):
        return _encode_array(b"a", np.asarray(value))
    if isinstance(value, Null):
        return b"v" + value.dtype.str.encode()
    if isinstance(value, Holes):
        return _encode_array(b"h", value.values) + value.is_null.tobytes()
    if isinstance(value, Json):
        value = value.value
    return b"j" + json.dumps(value, ensure_ascii=False, default=_as_json).encode()


def _encode_array(letter: bytes, array: npt.NDArray[Any]) -> bytes:
    if array.dtype.hasobject or array.dtype.itemsize == 0 or array.dtype.kind == "V":
        raise TypeError(f"an array of dtype {array.dtype}: its items have no fixed size")
    dtype = array.dtype.str.encode()
    head = letter + bytes([len(dtype)]) + dtype + bytes([array.ndim]) + struct.pack(f"<{array.ndim}q", *array.shape)
    return head + array.tobytes()


def _as_json(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    raise TypeError(f"a {type(value).__name__} inside a list or dict")


class SampleSource(ABC):
    """A source of samples that you read yourself. `mr.SampleLoader(MySource(), ...)` adds order, epochs and states.

    Samples are numbered within shards. A shard is a unit that is read together, for example a file. The loader calls
    `read` on one of its threads, for a few hundred samples at a time. The result must depend on the arguments of `read`
    alone, so that a resumed run gets the same samples. The source is pickled with the loader.
    """

    #: The name in messages.
    name = "samples"
    #: The number of samples that are best read together, such as the rows of a table's row group. 0: the loader
    #: chooses.
    window_rows = 0

    @abstractmethod
    def shards(self) -> Sequence[tuple[str, int]]:
        """Returns the name of each shard and its number of samples. The result must always be the same."""

    @abstractmethod
    def read(self, shard: int, begin: int, end: int) -> Sequence[Mapping[str, Any] | Exception]:
        """Returns samples [begin, end) of a shard: dicts of bytes, str, numbers, arrays, or values that JSON can
        represent. '__key__' is the key; without it, the key is SHARD:NUMBER. Return an exception in place of a damaged
        sample: the loader raises it or, with on_bad="quarantine", replaces the sample with another one."""

    def total_bytes(self) -> int:
        """Returns the approximate bytes of all samples; 0: unknown. Another value changes the order."""
        return 0

    def identity(self) -> str:
        """Returns a text that differs for different samples. States contain it. By default, it is made from the names
        and sizes of the shards."""
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
                fields = []
                for name, value in sample.items():
                    if name != KEY:
                        fields.append((name, encode(value)))
            except (TypeError, ValueError) as error:
                rows.append(ValueError(f"{self.shards()[shard][0]}: sample {number}: {name}: {error}"))
                continue
            rows.append((str(sample.get(KEY, f"{self.shards()[shard][0]}:{number}")), fields))
        return rows
