# SPDX-License-Identifier: Apache-2.0
"""Runs a loader inside a torch DataLoader."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

import millrace
from millrace import _core
from millrace.loader import NextStart, State, make_reader
from millrace.samples import Ahead

from .dist import resolve_rank
from .loader import Batch, Loader
from .samples import SampleLoader, as_tensors

_SKIP = "first_step"  # in the state of a worker: the number of batches of other workers before its next batch


def as_iterable(loader: millrace.Loader | Loader | millrace.SampleLoader, *, left_alone: bool = False) -> LoaderDataset:
    """Returns `loader` as a dataset for a torch DataLoader:

        DataLoader(mr.torch.as_iterable(loader), batch_size=None, num_workers=2)

    The loader returns complete batches, so `batch_size` is None. The workers share each pass, batch by batch, and the
    DataLoader returns the batches in the loader's order. The loader's own threads read and decode, so workers help only
    if Python code runs on each batch.

    left_alone: with more than one process, Accelerate (and therefore the Trainer of transformers) shards the rows a
        second time, and half of them are lost. as_iterable() therefore raises an error in this case. Pass True if
        Accelerate leaves the DataLoader alone: the DataLoader is not prepared, or has the attribute
        `_is_accelerate_prepared = True`.

    With carry_state=True, `loader.state_dict(batch)` returns the state after a batch that came from a worker. Before
    the DataLoader is iterated, loader.load_state_dict(state) sets the position, with any number of workers.

    Raises TypeError (not a loader), ValueError (a loader with device=...), RuntimeError (several processes of
    Accelerate).
    """
    return LoaderDataset(loader, left_alone)


class LoaderDataset(IterableDataset[Any]):
    """The result of as_iterable()."""

    def __init__(self, loader: millrace.Loader | Loader | millrace.SampleLoader, left_alone: bool) -> None:
        if not isinstance(loader, (millrace.Loader, Loader, millrace.SampleLoader)):
            raise TypeError(
                f"as_iterable: a Loader or SampleLoader of millrace or millrace.torch, not {type(loader).__name__}"
            )
        if isinstance(loader, (Loader, SampleLoader)) and loader._ahead is not None:
            raise ValueError(
                "as_iterable: the loader copies to a device, which workers cannot; make it without device="
            )
        self._loader = loader
        self._left_alone = left_alone
        self._refuse_accelerate()
        self._rest_only = False  # True after load_state_dict(): the next iteration returns the rest of the pass
        self._start: _Start | None = None  # in a spawned worker: the start of the loader in the parent
        self._share: _WorkerShare | None = None
        # Shared with the workers, one row each: 1 + the loader's moves when the worker last began a pass, and the next
        # pass.
        self._begun = torch.zeros((_MOST_WORKERS, 2), dtype=torch.int64).share_memory_()
        loader._workers_began = self._workers_began

    def __iter__(self) -> Iterator[Any]:
        self._refuse_accelerate()
        if get_worker_info() is not None:
            return self._own_share().begin()
        rest_only, self._rest_only = self._rest_only, False
        return _rest(self._loader) if rest_only else iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def state_dict(self) -> State:
        """Returns the state, for torchdata's StatefulDataLoader. In a worker, it is the state of that worker."""
        return self._loader.state_dict() if get_worker_info() is None else self._own_share().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if get_worker_info() is not None:
            self._own_share().restored = dict(state)
            return
        if _SKIP in state:
            raise ValueError("as_iterable: this state is of one worker of several; load it with as many workers")
        self._loader.load_state_dict(state)
        self._rest_only = True

    def __getstate__(self) -> dict[str, Any]:
        # This is for a spawned worker. Pickled loaders start at their beginning, so the position is pickled too.
        return {**self.__dict__, "_share": None, "_start": self._loader._next_start()}

    def _own_share(self) -> _WorkerShare:
        info = get_worker_info()
        assert info is not None
        if self._share is None or self._share.number != info.id:
            start = self._start or self._loader._next_start()
            self._share = _WorkerShare(self._loader, start, self._begun[info.id], info.id, info.num_workers)
        return self._share

    def _workers_began(self) -> bool:
        return bool((self._begun[:, 0] == self._loader._passes.moves + 1).any())

    def _refuse_accelerate(self) -> None:
        processes = 1 if self._left_alone else _accelerate_processes()
        if processes > 1:
            raise RuntimeError(
                f"as_iterable: Accelerate has {processes} processes, and would shard again what this loader has sharded. "
                "Iterate over the loader itself, without a DataLoader; or see to it that Accelerate leaves the DataLoader "
                "alone, and say left_alone=True (docs/frameworks.md)"
            )


class _WorkerShare:
    """Every n-th batch of a loader, in worker `number` of n."""

    def __init__(self, loader: Any, start: _Start, begun: torch.Tensor, number: int, workers: int) -> None:
        self.number = number
        self.restored: State | None = None  # set by load_state_dict(), for the next pass
        self._start = start
        self._begun = begun
        config = loader._reader.config()
        self._is_endless = loader._passes.is_endless
        threads = max(1, config["num_threads"] // workers)
        self._config = {**config, "first_step": number, "step_stride": workers, "num_threads": threads}
        self._as_tensors = isinstance(loader, (Loader, SampleLoader))
        # The Python work on a batch runs in this process, which is a DataLoader worker.
        self._work = loader._work if isinstance(loader, millrace.SampleLoader) else None
        self._carry_state = isinstance(loader, millrace.SampleLoader) and loader._carry_state
        self._reader: Any = None
        self._skip = number  # batches of other workers before the next batch of this worker

    def begin(self) -> Iterator[Any]:
        """Begins the next pass. It is not lazy: the pass is counted at once, for the worker that replaces this one."""
        restored, self.restored = self.restored, None
        self._skip = self.number if restored is None else restored.pop(_SKIP)
        self._reader = make_reader(**{**self._config, "first_step": self._skip})
        if restored is None:
            self._go_to_next_pass()
        else:
            self._reader.load_state_dict(restored)
        pass_now = 0 if self._is_endless else self._reader.pass_info()[0]
        self._begun[0], self._begun[1] = self._start[1][1] + 1, pass_now + 1
        return self._batches(self._reader)

    def state_dict(self) -> State:
        state = self._start[0] if self._reader is None else self._reader.state_dict()
        return {**(state or {}), _SKIP: self._skip}

    def _go_to_next_pass(self) -> None:
        state, start = self._start
        if state is not None:
            self._reader.load_state_dict(state)
        moves, following = (int(number) for number in self._begun)
        last = (following if moves > 0 else None, moves - 1)
        number = _core.pass_of_worker(start, last, self._is_endless, self._reader.pass_info)
        if number is not None:
            self._reader.start_pass(number)

    def _batches(self, reader: Any) -> Iterator[Any]:
        workers = self._config["step_stride"]
        batches = reader if self._work is None else Ahead(reader, self._work, None, 0, self._carry_state)
        for batch in batches:
            self._skip = workers - 1
            yield {name: as_tensors(value) for name, value in batch.items()} if self._as_tensors else batch


_Start = tuple[State | None, NextStart]  # as PassIterator._next_start() returns it
_MOST_WORKERS = 4096


def _rest(loader: Any) -> Iterator[Batch]:
    """Yields the rest of a loader's current pass, which may be empty."""
    while True:
        try:
            yield next(loader)
        except StopIteration:
            return


def _accelerate_processes() -> int:
    """Returns the number of processes of Accelerate. Before Accelerate knows it, returns the number of ranks if this
    process imported Accelerate or was started by it."""
    state = sys.modules.get("accelerate.state")
    known = {} if state is None else state.PartialState._shared_state
    if "num_processes" in known:
        return int(known["num_processes"])
    may_be_used = state is not None or "ACCELERATE_MIXED_PRECISION" in os.environ
    if not may_be_used or get_worker_info() is not None:
        return 1
    return resolve_rank(None, None)[1]
