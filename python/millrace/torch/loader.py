# SPDX-License-Identifier: Apache-2.0
"""Provides millrace.Loader with tensors instead of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy.typing as npt
import torch

import millrace
from millrace.loader import PassIterator, Schedule, Shuffle, Source, State, StrPath

from .device import resolve_device
from .device_ring import ring_copies_of
from .dist import resolve_rank

Batch = dict[str, torch.Tensor]


class Loader(PassIterator[Batch]):
    """Batches of millrace.Loader as torch tensors.

    Takes every argument of `millrace.Loader` and one more:

    device: None or a CPU device: the tensors share the loader's memory, without a copy. A CUDA device: the tensors are
        on that device. The loader's threads write each batch into pinned memory, a ring of buffers that is made once
        and counts as part of memory_bytes. One copy on a side stream moves the batch to the device, up to two batches
        ahead of training. The current stream waits for the copy; the caller does not. The tensors of a batch are views
        of one block: a reference to one tensor keeps the memory of all.

    `rank` and `world_size` default to those of torch.distributed if it is initialised, else to the environment's RANK
    and WORLD_SIZE, else to 0 of 1.

    Yields dicts: "input_ids" and "labels", int64 [batch, seq_len], and "attention_mask" (collate="pad") or
    "position_ids" (collate="pack"), int64 [batch, seq_len]. Raises the same errors as `millrace.Loader`.

    The object owns threads: close() it or use it as a context manager. Pickling keeps the arguments, not the position.
    `state_dict()` returns the position.
    """

    def __init__(
        self,
        shards: StrPath | Sequence[StrPath] | Source | Sequence[Source],
        *,
        seq_len: int,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        collate: Literal["pad", "pack", "best_fit"] = "pad",
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
        pad_id: int = 0,
        dtype: str | npt.DTypeLike | torch.dtype = "int64",
        num_threads: int = 0,
        memory_bytes: int = 0,
        ids_field: str = "",
        tokenizer: millrace.Tokenizer | StrPath | None = None,
        vocab_size: int | None = None,
        carry_state: bool = False,
        carry_source: bool = False,
        carry_documents: bool = False,
        on_bad: Literal["raise", "quarantine"] = "raise",
        max_bad: int = 1000,
        cache: StrPath | None = None,
        cache_bytes: int | str = 0,
        stall_seconds: float = 120,
        on_stall: Literal["warn", "raise"] = "warn",
        numa: bool = True,
        device: torch.device | str | int | None = None,
    ) -> None:
        self._asked_rank = (rank, world_size)
        to_device = None if device is None else resolve_device(device)
        rank, world_size = resolve_rank(rank, world_size)
        arrays = millrace.Loader(
            shards, seq_len=seq_len, batch_size=batch_size, global_batch_size=global_batch_size, collate=collate,
            shuffle=shuffle, seed=seed, rank=rank, world_size=world_size, epochs=epochs, stop=stop,
            schedule=schedule, carry_source=carry_source, carry_documents=carry_documents, drop_last=drop_last,
            fill_last=fill_last, uneven_ranks=uneven_ranks, pad_id=pad_id, dtype=dtype, num_threads=num_threads,
            memory_bytes=memory_bytes, ids_field=ids_field, tokenizer=tokenizer, vocab_size=vocab_size, carry_state=carry_state,
            on_bad=on_bad, max_bad=max_bad,
            cache=cache, cache_bytes=cache_bytes, stall_seconds=stall_seconds, on_stall=on_stall, numa=numa,
        )  # fmt: skip
        self._open(arrays, to_device)

    def _open(self, arrays: millrace.Loader, device: torch.device | None) -> None:
        super().__init__(arrays._reader, arrays._epochs, arrays._passes.is_endless)
        self._device = device
        self._ahead = ring_copies_of(self._reader, self._device)

    def _take(self) -> Batch:
        if self._ahead is not None:
            return next(self._ahead)
        return {name: torch.from_numpy(array) for name, array in next(self._reader).items()}

    def _position(self) -> State:
        return self._reader.state_dict() if self._ahead is None else self._ahead.state

    def _pause(self) -> None:
        if self._ahead is not None:
            self._ahead.pause()

    def _moved(self) -> None:
        if self._ahead is not None:
            self._ahead.restart()

    def _settle(self) -> None:
        if self._ahead is not None and self._ahead.is_ahead:
            self._to_position()
            self._ahead.restart()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> tuple[dict[str, Any], Any, Any]:
        return self._reader.config(), self._asked_rank, self._device

    def __setstate__(self, state: tuple[dict[str, Any], Any, Any]) -> None:
        arguments, self._asked_rank, device = state
        # The process that unpickles this may have another rank than the one found here.
        arguments["rank"], arguments["world_size"] = resolve_rank(*self._asked_rank)
        arrays = millrace.Loader.__new__(millrace.Loader)
        arrays.__setstate__(arguments)
        self._open(arrays, device)
