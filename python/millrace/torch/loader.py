# SPDX-License-Identifier: Apache-2.0
"""millrace.Loader with tensors instead of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import millrace

from .dist import resolve_rank

Batch = dict[str, torch.Tensor]


class Loader:
    """Batches of millrace.Loader as torch tensors.

    Takes every argument of `millrace.Loader` and one more:

    device: None or a CPU device gives tensors that share the loader's memory, without a copy. A CUDA device gives
    tensors
        there: each batch is copied to pinned memory and from there by a side stream, one batch ahead of training.

    `rank` and `world_size` default to those of torch.distributed when it is initialised, else to the environment's RANK
    and WORLD_SIZE, else to 0 of 1.

    Yields dicts: "input_ids" and "labels", int64 [batch, seq_len], and "attention_mask" (collate="pad") or
    "position_ids" (collate="pack"), int64 [batch, seq_len]. Raises what `millrace.Loader` raises.

    Not thread-safe. Owns threads: close() it or use it as a context manager. Pickling carries the arguments, not the
    position; `state_dict()` carries the position.
    """

    def __init__(
        self,
        shards: Any,
        *,
        device: torch.device | str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Any,
    ) -> None:
        self._config = dict(options, shards=shards, device=device, rank=rank, world_size=world_size)
        rank, world_size = resolve_rank(rank, world_size)
        self._inner = millrace.Loader(shards, rank=rank, world_size=world_size, **options)
        self._ahead: _DeviceCopies | None = None
        if device is not None and torch.device(device).type != "cpu":
            self._ahead = _DeviceCopies(self._inner, torch.device(device))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._ahead is not None:
            return next(self._ahead)
        return {name: torch.from_numpy(array) for name, array in next(self._inner).items()}

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch returned, the same on all ranks; loads at any world size."""
        return self._inner.state_dict() if self._ahead is None else self._ahead.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken. Raises ValueError when it belongs to other data or another order."""
        self._inner.load_state_dict(state)
        if self._ahead is not None:
            self._ahead.restart()

    def stats(self) -> dict[str, Any]:
        """Counters of millrace.Loader: among them how long next() waited for data."""
        return self._inner.stats()

    def close(self) -> None:
        """Stops the loader's threads."""
        self._inner.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self._config,)


def _unpickle(config: dict[str, Any]) -> Loader:
    return Loader(**config)


class _DeviceCopies:
    """Iterates over device copies of a loader's batches, one copy under way ahead of the one returned."""

    def __init__(self, inner: Any, device: torch.device) -> None:
        self._inner = inner
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self.restart()

    def restart(self) -> None:
        """Forgets the batch that is ahead: the loader stands somewhere else now."""
        self._next: tuple[Batch, dict[str, Any]] | None = None
        self.state: dict[str, Any] = self._inner.state_dict()

    def __next__(self) -> Batch:
        ready = self._next or self._copy()
        if ready is None:
            raise StopIteration
        batch, self.state = ready
        consumer = torch.cuda.current_stream(self._device)
        consumer.wait_stream(self._stream)
        for tensor in batch.values():
            tensor.record_stream(consumer)
        self._next = self._copy()
        return batch

    def _copy(self) -> tuple[Batch, dict[str, Any]] | None:
        arrays = next(self._inner, None)
        if arrays is None:
            return None
        with torch.cuda.stream(self._stream):
            batch = {
                name: torch.from_numpy(array).pin_memory().to(self._device, non_blocking=True)
                for name, array in arrays.items()
            }
        # What was fetched ahead is not what training has seen, so each batch carries the state behind it.
        return batch, self._inner.state_dict()
