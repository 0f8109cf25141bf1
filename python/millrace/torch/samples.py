# SPDX-License-Identifier: Apache-2.0
"""Provides millrace.SampleLoader with tensors instead of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

import millrace.samples
from millrace.fields import Fields
from millrace.loader import Schedule, Shuffle, Source, State, StrPath
from millrace.samples import Map, SampleBatch
from millrace.sources import SampleSource

from .device import copies_of, resolve_device
from .dist import resolve_rank


def as_tensors(value: Any) -> Any:
    """Converts arrays, also in lists, to tensors that share their memory. Values that no tensor can hold (texts, times,
    other byte orders) stay as they are."""
    if isinstance(value, list):
        return [as_tensors(item) for item in value] if value and isinstance(value[0], np.ndarray) else value
    if not isinstance(value, np.ndarray):
        return value
    try:
        return torch.from_numpy(value)
    except (TypeError, ValueError):
        return value


class _Tensors:
    """The batches of a SampleLoader as tensors, for DeviceCopies. Has no reference to the loader, which has a reference
    to this object."""

    def __init__(self, loader: SampleLoader) -> None:
        self._batches = loader._batches

    def __next__(self) -> SampleBatch:
        return next(self._batches)

    def state_dict(self) -> State:
        return self._batches.state


class SampleLoader(millrace.samples.SampleLoader):
    """Batches of millrace.SampleLoader as torch tensors.

    Takes every argument of `millrace.SampleLoader` and one more:

    device: None or a CPU device: the tensors share the loader's memory, without a copy. A CUDA device: the tensors are
        on that device. A thread writes each batch into pinned memory (three buffers that are made once) and copies it
        to the device on a side stream, two batches ahead of training. The current stream waits for the copy; the caller
        does not.

    `rank` and `world_size` default to those of torch.distributed if it is initialised, else to the environment's RANK
    and WORLD_SIZE, else to 0 of 1. `map` and `map_batch` get arrays and may return tensors.
    """

    def __init__(
        self,
        shards: StrPath | Sequence[StrPath] | SampleSource | Source | Sequence[Source],
        *,
        fields: Fields | None = None,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        map: Map | None = None,
        map_batch: Map | None = None,
        workers: int = 0,
        worker_kind: Literal["thread", "process"] = "thread",
        shuffle: Shuffle = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        epochs: int | None = None,
        stop: Literal["endless", "first_empty", "all_empty"] = "endless",
        schedule: Schedule | None = None,
        drop_last: bool = True,
        fill_last: Literal["pad", "repeat"] | None = None,
        uneven_ranks: bool = False,
        num_threads: int = 0,
        memory_bytes: int = 0,
        carry_state: bool = False,
        carry_source: bool = False,
        on_bad: Literal["raise", "quarantine"] = "raise",
        max_bad: int = 1000,
        cache: StrPath | None = None,
        cache_bytes: int | str = 0,
        stall_seconds: float = 120,
        on_stall: Literal["warn", "raise"] = "warn",
        numa: bool = True,
        device: torch.device | str | int | None = None,
    ) -> None:
        asked = (rank, world_size)
        to_device = None if device is None else resolve_device(device)
        rank, world_size = resolve_rank(rank, world_size)
        super().__init__(
            shards, fields=fields, batch_size=batch_size, global_batch_size=global_batch_size, map=map,
            map_batch=map_batch, workers=workers, worker_kind=worker_kind, shuffle=shuffle, seed=seed, rank=rank,
            world_size=world_size, epochs=epochs, stop=stop, schedule=schedule, drop_last=drop_last, fill_last=fill_last,
            uneven_ranks=uneven_ranks, num_threads=num_threads, memory_bytes=memory_bytes, carry_state=carry_state,
            carry_source=carry_source, on_bad=on_bad, max_bad=max_bad, cache=cache, cache_bytes=cache_bytes,
            stall_seconds=stall_seconds, on_stall=on_stall, numa=numa,
        )  # fmt: skip
        self._open_device(asked, to_device)

    def _open_device(self, asked: tuple[int | None, int | None], device: torch.device | None) -> None:
        self._asked_rank = asked
        self._device = device
        self._ahead = copies_of(_Tensors(self), self._device)

    def _take(self) -> SampleBatch:
        if self._ahead is not None:
            return next(self._ahead)
        return {name: as_tensors(value) for name, value in super()._take().items()}

    def _position(self) -> State:
        return super()._position() if self._ahead is None else self._ahead.state

    def _pause(self) -> None:
        if self._ahead is not None:
            self._ahead.pause()

    def _moved(self) -> None:
        if self._ahead is not None:
            self._ahead.restart()
        super()._moved()

    def _settle(self) -> None:
        if self._ahead is None:
            super()._settle()
        elif self._ahead.is_ahead:
            self._to_position()
            self._moved()

    def close(self) -> None:
        """Stops the threads and processes and frees batches that were read ahead. Returned batches stay valid."""
        self._reader.close()  # ends a wait of the thread that copies
        self._moved()
        super().close()

    def __getstate__(self) -> tuple[Any, ...]:
        return super().__getstate__(), self._asked_rank, self._device

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        arguments, asked, device = state
        # The process that unpickles this may have another rank than the one found here.
        arguments[0]["rank"], arguments[0]["world_size"] = resolve_rank(*asked)
        super().__setstate__(arguments)
        self._open_device(asked, device)
