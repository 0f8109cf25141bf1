# SPDX-License-Identifier: Apache-2.0
"""Reads samples of shards by number."""

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

    A sample is a dict: '__key__' (str) and the bytes of each field by the field's name ('token_ids.npy', 'text.txt').
    The numbers follow the order of the shards, and within a shard the order of the file. A loader's seed does not
    change them. Each read fetches one range of a shard and verifies it against the shard's index. Dataset works as a
    map-style torch Dataset. For fast training and for resuming, use `mr.Loader`, which has no sample numbers.

    shards: a folder that `prepare` wrote, a tar, a brace pattern of tars, or a list of these. A tar without an index is
        read once, when the dataset is opened, to make an index in memory.
    ids_field: the field that ids() reads; empty: the field that the shards name.
    cache: a folder on this node that keeps data read from other places. All processes share it (docs/loader.md).
    cache_bytes: the largest size of the cache, such as "500GB"; 0: half of the disk.

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
        """Returns a sample or, for a slice, a list of samples. Raises IndexError, CorruptionError (naming shard and
        sample)."""
        if isinstance(number, slice):
            return [self._here().read(i) for i in range(len(self))[number]]
        return self._here().read(self._number(number))

    def ids(self, number: SupportsIndex) -> npt.NDArray[np.uint32]:
        """Returns the token ids of a sample, [tokens]. Raises IndexError, CorruptionError, NotImplementedError (no
        ids)."""
        return self._here().read_ids(self._number(number))

    def _number(self, number: SupportsIndex) -> int:
        size, asked = len(self), operator.index(number)
        if not -size <= asked < size:
            raise IndexError(f"sample {asked} of a dataset of {size}")
        return asked % size

    def _here(self) -> _core.DatasetReader:
        if self._process != os.getpid():  # a forked child does not have the parent's threads
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
