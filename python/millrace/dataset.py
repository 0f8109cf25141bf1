# SPDX-License-Identifier: Apache-2.0
"""Samples of shards by number."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from typing import Any, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from millrace import _core
from millrace._arguments import plain

StrPath = str | os.PathLike[str]
Sample = dict[str, str | bytes]

_open = plain(_core.DatasetReader.__init__, "Dataset")


class Dataset(Sequence[Sample]):
    """Random access to the samples of shards: `mr.Dataset("shards")[17]`.

    A sample is a dict: '__key__' (str) and each field's bytes by its name ('token_ids.npy', 'text.txt'). The numbers
    follow the shards, and in each the order of the file, whatever a loader's seed is. Each read is one range of a shard,
    verified against its index. It fits a map-style torch Dataset; training at speed and resuming is `mr.Loader`, which
    has no numbers.

    shards: a folder that `prepare` wrote, a tar, a brace pattern of tars, or a list of these. A tar without an index is
        read once, when the dataset is opened, to make one in memory.
    ids_field: the field that ids() reads; empty: what the shards say.
    cache: a folder on this node; what is read from elsewhere is kept there and shared by all processes (docs/loader.md).
    cache_bytes: its cap, such as "500GB"; 0: half of the disk.

    Thread-safe. Pickled and forked copies open the shards again. Raises FileNotFoundError, ValueError, CorruptionError.
    """

    def __init__(
        self,
        shards: StrPath | Sequence[StrPath],
        *,
        ids_field: str = "",
        cache: StrPath | None = None,
        cache_bytes: int | str = 0,
    ) -> None:
        self._arguments = (shards, ids_field, "" if cache is None else os.fspath(cache), str(cache_bytes))
        self._process = 0
        self._here()

    def __len__(self) -> int:
        return len(self._here())

    @overload
    def __getitem__(self, number: SupportsIndex) -> Sample: ...
    @overload
    def __getitem__(self, number: slice) -> list[Sample]: ...
    def __getitem__(self, number: SupportsIndex | slice) -> Sample | list[Sample]:
        """A sample, or a list of those of a slice. Raises IndexError, CorruptionError (naming shard and sample)."""
        if isinstance(number, slice):
            return [self._here().read(i) for i in range(len(self))[number]]
        return self._here().read(self._number(number))

    def ids(self, number: SupportsIndex) -> npt.NDArray[np.uint32]:
        """The token ids of a sample, [tokens]. Raises IndexError, CorruptionError, NotImplementedError (no ids)."""
        return self._here().read_ids(self._number(number))

    def _number(self, number: SupportsIndex) -> int:
        size, asked = len(self), operator.index(number)
        if not -size <= asked < size:
            raise IndexError(f"sample {asked} of a dataset of {size}")
        return asked % size

    def _here(self) -> _core.DatasetReader:
        if self._process != os.getpid():  # the threads of a parent are not here
            reader = _core.DatasetReader.__new__(_core.DatasetReader)
            _open(reader, *self._arguments)
            self._reader = reader
            self._process = os.getpid()
        return self._reader

    def __getstate__(self) -> tuple[Any, ...]:
        return self._arguments

    def __setstate__(self, arguments: tuple[Any, ...]) -> None:
        self._arguments = arguments
        self._process = 0
