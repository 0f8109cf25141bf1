# SPDX-License-Identifier: Apache-2.0
"""Copies batches of token ids to a GPU: the loader's threads write them into pinned memory, and one copy moves each."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import NamedTuple

import torch

from millrace import _core
from millrace.loader import State

from .device import Copies, CudaCopies, Event

_Shape = tuple[int, ...]


class _Copied(NamedTuple):
    """A batch whose copy was begun."""

    block: torch.Tensor  # uint8, on the device
    event: Event  # the event after the copy
    batch: _core.RingBatch


class _Place(NamedTuple):
    """The place of a field in a block, in elements of the field's dtype."""

    name: str
    dtype: torch.dtype
    shape: _Shape
    strides: _Shape
    offset: int


class RingCopies:
    """Iterates over device copies of the batches of a reader of token ids. The reader's threads write each batch into a
    pinned buffer of a ring. next() begins the copies of the batches that are ready, up to `ahead` beyond the batch that
    it returns. It waits for the reader only if it has no batch to return. This class has no thread: beginning a copy
    takes microseconds, while a Python thread would compete for the interpreter's lock when training launches its
    kernels.

    A buffer is returned to the reader when the copy from it is done. The fields of a batch are views of one block of
    device memory. Each field has its own version, as if the fields were separate tensors.

    Not thread-safe: one thread iterates. It calls restart() when the reader has another position.
    """

    def __init__(self, reader: _core.BatchReader, copies: Copies, ahead: int = 2) -> None:
        self._reader = reader
        self._copies = copies
        self._most = ahead
        self._kept = ahead + 2  # buffers in use at once: the batches ahead, the one before them, the one being fetched
        self._buffers: tuple[torch.Tensor, ...] | None = None
        self._hosts: list[torch.Tensor] = []  # for each buffer, the part that its last batch used
        self._sizes: list[int] = []  # the size of that part, in bytes
        self._uncopied: _core.RingBatch | None = None  # a fetched batch whose copy has not begun, or has failed
        self._items: deque[_Copied] = deque()  # batches to return, in order
        self._flying: deque[_Copied] = deque()  # batches whose copies may be in progress, in order
        self._layout: object = None  # the layout that _places is for
        self._places: list[_Place] = []
        self._state: State | _core.RingBatch | None = None  # after the last returned batch; None: the reader's position

    @property
    def is_ahead(self) -> bool:
        """Whether batches were fetched and not yet returned."""
        return bool(self._items) or self._uncopied is not None

    @property
    def state(self) -> State:
        """The state after the last returned batch."""
        if self._state is None:
            self._state = self._reader.state_dict()
        elif isinstance(self._state, _core.RingBatch):
            self._state = self._state.state_dict()
        return self._state

    def pause(self) -> None:
        """Does nothing: no batch is fetched between two calls."""

    def restart(self) -> None:
        """Discards the batches ahead: the reader has a new position."""
        self._items.clear()
        self._uncopied = None
        self._state = None

    def __next__(self) -> dict[str, torch.Tensor]:
        if not torch.is_inference_mode_enabled():
            return self._next()
        with torch.inference_mode(False):  # batches that are fetched ahead now may be trained on
            return self._next()

    def _next(self) -> dict[str, torch.Tensor]:
        if not self._items:
            if self._state is None:
                _ = self.state  # before anything is fetched ahead
            self._begin(may_wait=True)
        copied = self._items.popleft()
        self._copies.hand_over(copied.event, iter((copied.block,)))
        fields = self._fields_of(copied)
        self._state = copied.batch
        self._look_ahead()
        return fields

    def _look_ahead(self) -> None:
        # The call that waits for that batch raises the error: a reader repeats it, and a batch that was not copied is
        # kept.
        with contextlib.suppress(Exception):
            while len(self._items) < self._most and self._begin(may_wait=False):
                pass

    def _begin(self, may_wait: bool) -> bool:
        """Begins the copy of the next batch. Returns False if none is ready."""
        if self._buffers is None:
            self._make_buffers()
        self._give_back()
        if self._uncopied is None:
            self._uncopied = self._reader.next_in_ring(may_wait)
        batch = self._uncopied
        if batch is None:
            return False
        host = self._host(batch)
        with self._copies.side_stream():
            block = self._copies.empty_like(host)
            self._copies.copy(block, host)
            copied = _Copied(block, self._copies.record(), batch)
        self._uncopied = None
        self._flying.append(copied)
        self._items.append(copied)
        return True

    def _make_buffers(self) -> None:
        size, count = self._reader.ring_space(self._kept)
        ring = self._copies.pinned(size * count)
        self._reader.use_ring(ring.data_ptr(), size, count, self._kept, ring)
        self._buffers = ring.view(count, size).unbind()
        self._hosts, self._sizes = list(self._buffers), [size] * count

    def _give_back(self) -> None:
        """Returns to the reader the buffers whose copies are done. The oldest buffer is returned in any case if another
        batch would exceed the limit."""
        flying = self._flying
        while flying:
            if not flying[0].event.query():
                if len(flying) < self._kept:
                    break
                flying[0].event.synchronize()
            flying.popleft().batch.release()

    def _host(self, batch: _core.RingBatch) -> torch.Tensor:
        number, size = batch.buffer, batch.bytes
        if number < 0 or self._buffers is None:  # its memory is not pinned, so its copy waits
            return torch.from_numpy(batch.array())
        if self._sizes[number] != size:
            self._sizes[number], self._hosts[number] = size, self._buffers[number].narrow(0, 0, size)
        return self._hosts[number]

    def _fields_of(self, copied: _Copied) -> dict[str, torch.Tensor]:
        layout = copied.batch.layout
        if layout is not self._layout:
            self._layout, self._places = layout, [_place_of(*field) for field in layout]
        fields: dict[str, torch.Tensor] = {}
        flat: dict[torch.dtype, torch.Tensor] = {}
        for name, dtype, shape, strides, offset in self._places:
            if dtype not in flat:
                flat[dtype] = copied.block.view(dtype)
            # .data: writing into one field does not invalidate another field for a backward
            fields[name] = flat[dtype].as_strided(shape, strides, offset).data
        return fields


def _place_of(name: str, dtype_name: str, shape: _Shape, offset: int) -> _Place:
    dtype: torch.dtype = getattr(torch, dtype_name)
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * max(shape[axis], 1)
    return _Place(name, dtype, shape, tuple(strides), offset // dtype.itemsize)


def ring_copies_of(reader: _core.BatchReader, device: torch.device | None) -> RingCopies | None:
    """Returns the RingCopies of `reader`; None: the batches of `reader` stay in CPU memory."""
    if device is None or device.type == "cpu":
        return None
    return RingCopies(reader, CudaCopies(device))
