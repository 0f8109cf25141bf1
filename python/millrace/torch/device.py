# SPDX-License-Identifier: Apache-2.0
"""Copies batches to a GPU on a side stream, through pinned buffers that are allocated once."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

import numpy as np
import torch

from millrace.loader import State

_ALIGNMENT = 64  # the alignment of each tensor in a buffer: a view of any dtype is possible there


def resolve_device(device: torch.device | str | int) -> torch.device:
    """Returns the device that an argument names. Raises ValueError for a name that torch does not know."""
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(
            f'device {device!r}: torch knows no such device; name one as "cpu", "cuda" or "cuda:1"'
        ) from None


class Event(Protocol):
    def synchronize(self) -> None:
        """Waits for the work that was queued on the stream before the event."""

    def query(self) -> bool:
        """Returns whether that work is done."""


class Copies(Protocol):
    """The device calls; tests substitute them."""

    def side_stream(self) -> AbstractContextManager[Any]:
        """Returns a context in which copies and events belong to the side stream."""

    def pinned(self, size: int) -> torch.Tensor:
        """Returns host memory that the device reads without help of the CPU: uint8 [size]."""

    def empty_like(self, value: torch.Tensor) -> torch.Tensor:
        """Returns memory of the device."""

    def copy(self, target: torch.Tensor, pinned: torch.Tensor) -> None:
        """Begins a copy. `pinned` is read until an event that is recorded after the copy is done."""

    def other(self, value: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of any kind on the device, copied in torch's own way."""

    def record(self) -> Event: ...

    def hand_over(self, event: Event, tensors: Iterator[torch.Tensor]) -> None:
        """Makes the training stream wait for `event`, and keeps the tensors' memory until that stream has used it."""


class CudaCopies:
    """Copies for a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None  # made when needed, because making it starts CUDA

    def side_stream(self) -> AbstractContextManager[Any]:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        return torch.cuda.stream(self._stream)

    def pinned(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def empty_like(self, value: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(value, device=self._device)

    def copy(self, target: torch.Tensor, pinned: torch.Tensor) -> None:
        target.copy_(pinned, non_blocking=True)

    def other(self, value: torch.Tensor) -> torch.Tensor:
        pinned = value.pin_memory() if value.device.type == "cpu" else value
        return pinned.to(self._device, non_blocking=True)

    def record(self) -> Event:
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def hand_over(self, event: Event, tensors: Iterator[torch.Tensor]) -> None:
        consumer = torch.cuda.current_stream(self._device)
        consumer.wait_event(cast(torch.cuda.Event, event))  # an event of record()
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(consumer)


class PinnedRing:
    """Copies batches to a device through two pinned buffers, as large as the largest batch so far.

    A buffer is used again when the copies from it are done. No caller keeps a buffer: results are on the device, and
    inputs have been read.
    """

    def __init__(self, copies: Copies, buffers: int = 2) -> None:
        self._copies = copies
        self._buffers: list[torch.Tensor | None] = [None] * buffers
        self._events: list[Event | None] = [None] * buffers  # the event after the last copy from each buffer
        self._turn = 0

    def to_device(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Returns the batch with its arrays and tensors, also in lists and dicts, on the device, for the training
        stream."""
        moved, event = self.begin(batch)
        self._copies.hand_over(event, tensors_of(moved))
        return moved

    def begin(self, batch: dict[str, Any]) -> tuple[dict[str, Any], Event]:
        """Does the same as to_device(), but the tensors must not be used before hand_over()."""
        with self._copies.side_stream():
            return self._begin(batch)

    def _begin(self, batch: dict[str, Any]) -> tuple[dict[str, Any], Event]:
        batch = as_tensors(batch)
        size = sum(_space(tensor) for tensor in tensors_of(batch) if _is_plain(tensor))
        turn, self._turn = self._turn, (self._turn + 1) % len(self._buffers)
        if (last := self._events[turn]) is not None:
            last.synchronize()
            self._events[turn] = None
        buffer = self._buffers[turn]
        if buffer is None or buffer.numel() < size:
            self._buffers[turn] = None  # frees it before the next buffer needs memory
            buffer = self._buffers[turn] = self._copies.pinned(size)
        try:
            at = 0

            def move(tensor: Any) -> Any:
                nonlocal at
                if not isinstance(tensor, torch.Tensor):
                    return tensor
                if not _is_plain(tensor):
                    return self._copies.other(tensor)
                place = buffer[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                at += _space(tensor)
                place.copy_(tensor)
                target = self._copies.empty_like(tensor)
                self._copies.copy(target, place)
                return target

            moved = _each(batch, move)
        finally:
            # Records the event after an error too: copies already begun still read the buffer.
            event = self._events[turn] = self._copies.record()
        return moved, event


class DeviceCopies:
    """Iterates over device copies of a loader's batches. A separate thread fetches batches and begins their copies, up
    to `ahead` batches beyond the last returned batch. next() therefore finds a copy that is in progress or done.

    Not thread-safe: one thread iterates. That thread calls pause() before the loader gets another position, and
    restart() after that. Only the fetching thread uses `inner`, except for state_dict() while it is paused.
    """

    def __init__(self, inner: Any, copies: Copies, ahead: int = 2) -> None:
        self._inner = inner
        self._ring = PinnedRing(copies, ahead + 1)
        self._copies = copies
        self._most = ahead
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], object]  # stops the fetching thread
        self._shared = _Shared()
        self._state: State | None = None  # after the last returned batch; None: the position of `inner`

    @property
    def is_ahead(self) -> bool:
        """Whether batches were fetched and not yet returned."""
        return bool(self._shared.items) or self._shared.uncopied is not None or self._thread is not None

    @property
    def state(self) -> State:
        """The state after the last returned batch."""
        if self._state is None:
            self._state = self._inner.state_dict()
        return self._state

    def pause(self) -> None:
        """Stops fetching. Waits for the batch that is being fetched, if any."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop()  # only once, though it would be called again when this object is collected
            thread.join()

    def restart(self) -> None:
        """Discards the batches ahead: the loader has a new position."""
        self.pause()
        self._shared = _Shared()
        self._state = None

    def __next__(self) -> dict[str, Any]:
        if self._thread is None and not self._shared.items:
            _ = self.state  # before anything is fetched ahead
            self._start()
        shared = self._shared
        with shared.changed:
            while not shared.items:
                shared.changed.wait()
            item = shared.items.popleft()
        if isinstance(item, BaseException):
            # The thread has ended. The next call asks the loader again.
            self.pause()
            raise item
        batch, event, state = item
        self._copies.hand_over(event, tensors_of(batch))
        self._state = state
        with shared.changed:
            shared.changed.notify_all()  # last, because the thread that wakes takes the GIL
        return batch

    def _start(self) -> None:
        shared = _Shared()
        shared.uncopied, self._shared = self._shared.uncopied, shared
        arguments = (shared, self._inner, self._ring, self._most)
        # The thread knows neither this object nor the loader around it, so both can be collected while it waits.
        self._thread = threading.Thread(target=_feed, args=arguments, name="mr-device", daemon=True)
        self._stop = weakref.finalize(self, shared.stop)
        self._thread.start()


class _Shared:
    """State shared by the thread that feeds a device and the thread that trains."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        # In order: (batch, event, the state after the batch). The last item is the exception that ended the thread.
        self.items: deque[tuple[dict[str, Any], Event, State] | BaseException] = deque()
        # A fetched batch whose copy failed, with the state after it. While the fetching thread runs, only it uses this.
        self.uncopied: tuple[dict[str, Any], State] | None = None
        self.is_stopped = False

    def stop(self) -> None:
        with self.changed:
            self.is_stopped = True
            self.changed.notify_all()


def _feed(shared: _Shared, inner: Any, ring: PinnedRing, most: int) -> None:
    item: tuple[dict[str, Any], Event, State] | BaseException
    while True:
        with shared.changed:
            while len(shared.items) >= most and not shared.is_stopped:
                shared.changed.wait()
            if shared.is_stopped:
                return
        try:
            item = _fetch_and_copy(shared, inner, ring)
        except BaseException as error:
            item = error
        with shared.changed:
            shared.items.append(item)
            shared.changed.notify_all()
        if isinstance(item, BaseException):
            return


def _fetch_and_copy(shared: _Shared, inner: Any, ring: PinnedRing) -> tuple[dict[str, Any], Event, State]:
    if shared.uncopied is None:
        # Training has not seen this batch, so the state after it is kept with it.
        shared.uncopied = next(inner), inner.state_dict()
    batch, state = shared.uncopied
    moved, event = ring.begin(batch)
    shared.uncopied = None
    return moved, event, state


def copies_of(inner: Any, device: torch.device | None) -> DeviceCopies | None:
    """Returns the DeviceCopies of `inner`; None: the batches of `inner` stay in CPU memory."""
    if device is None or device.type == "cpu":
        return None
    return DeviceCopies(inner, CudaCopies(device))


def as_tensors(batch: dict[str, Any]) -> dict[str, Any]:
    """Returns the batch as tensors that share the same memory."""
    moved: dict[str, Any] = _each(batch, _as_tensor)
    return moved


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors in a batch."""
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value) is dict:
        for item in value.values():
            yield from tensors_of(item)
    elif _holds_numbers(value):
        for item in value:
            yield from tensors_of(item)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """Returns `value` with change(item) in place of each array and tensor."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return change(value)
    if type(value) is dict:
        return {name: _each(item, change) for name, item in value.items()}
    if _holds_numbers(value):
        return [_each(item, change) for item in value]
    return value


def _holds_numbers(value: Any) -> bool:
    """Returns whether the value is a list of arrays or tensors, possibly with gaps, such as pictures of several sizes,
    or a list of dicts of these, such as the parts of a mixture."""
    return isinstance(value, list) and any(_is_or_has_numbers(item) for item in value)


def _is_or_has_numbers(value: Any) -> bool:
    if type(value) is dict:
        return any(_is_or_has_numbers(item) or _holds_numbers(item) for item in value.values())
    return isinstance(value, (torch.Tensor, np.ndarray))


def _as_tensor(value: Any) -> Any:
    """Returns a tensor that shares the same memory. Values that no tensor can hold (texts, times, other byte orders)
    stay as they are."""
    if isinstance(value, torch.Tensor):
        return value
    try:
        return torch.from_numpy(value)
    except (TypeError, ValueError):
        return value


def _is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether the memory of the tensor is its content: contiguous bytes on the CPU."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.requires_grad
        and tensor.is_contiguous()
    )


def _space(tensor: torch.Tensor) -> int:
    return (tensor.nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
