# SPDX-License-Identifier: Apache-2.0
"""Copies tensors between a GPU and a checkpoint's image, which is its file in pinned memory, on a side stream."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from millrace import _core

from .runs import copy_run
from .tensors import Value, row_major


class Ticket(Protocol):
    """Copies in progress. They use their sources and targets until wait() returns."""

    def wait(self) -> None:
        """Waits for the copies."""

    def hold(self) -> None:
        """Makes later work on the current streams wait for the copies."""


class ImageCopies(Protocol):
    """The device calls; tests substitute them."""

    def takes(self, value: Value) -> bool:
        """Returns whether the value is in a device's memory."""

    def follow(self, values: Iterable[Value]) -> None:
        """Orders later copies of these values, on any thread, after the work that this thread has queued on their
        devices."""

    def block(self, size: int) -> torch.Tensor:
        """Returns host memory for copies: uint8 [size]."""

    def begin(self, target: torch.Tensor, value: torch.Tensor) -> None:
        """Begins a copy of the elements, row by row, after the work queued on the device. Either `target` or `value` is
        on a device. target: uint8 [bytes]."""

    def ticket(self) -> Ticket:
        """Returns a ticket for the copies that were begun since the last ticket."""


class CudaTicket:
    def __init__(self, events: dict[torch.device, torch.cuda.Event], kept: list[torch.Tensor]) -> None:
        self._events = events
        self._kept = kept

    def wait(self) -> None:
        for event in self._events.values():
            event.synchronize()
        self._kept.clear()

    def hold(self) -> None:
        for device, event in self._events.items():
            torch.cuda.current_stream(device).wait_event(event)


class CudaImageCopies:
    """Copies CUDA tensors, on one side stream per device."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._used: set[torch.device] = set()
        self._kept: list[torch.Tensor] = []

    def takes(self, value: Value) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == "cuda"

    def block(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def follow(self, values: Iterable[Value]) -> None:
        for device in {value.device for value in values if isinstance(value, torch.Tensor) and self.takes(value)}:
            self._stream_behind(device)

    def _stream_behind(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        stream = self._streams[device]
        if device not in self._used:
            self._used.add(device)
            stream.wait_stream(torch.cuda.current_stream(device))
        return stream

    def begin(self, target: torch.Tensor, value: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream_behind(target.device if value.device.type == "cpu" else value.device)):
            source = row_major(value)
            self._kept.append(source)
            target.copy_(source, non_blocking=True)

    def ticket(self) -> CudaTicket:
        events = {}
        for device in self._used:
            events[device] = torch.cuda.Event()
            events[device].record(self._streams[device])
        ticket = CudaTicket(events, self._kept)
        self._used, self._kept = set(), []
        return ticket


class DeviceImage:
    """The device copies that fill the image of one save. `values` are the values of the save, in order. REQUIRES: the
    caller waits for the ticket, whatever happens."""

    def __init__(self, copies: ImageCopies, values: Sequence[Value]) -> None:
        self._copies = copies
        self._values = values
        self._lock = threading.Lock()  # tiers may be filled at the same time
        self._rows: tuple[int, torch.Tensor] | None = None  # a value's number, and its elements in order
        copies.follow(values)

    @torch.no_grad()
    def fill(self, memory: int, size: int, places: Sequence[tuple[int, int, int, int]], complete: bool) -> None:
        """Begins to fill places of the memory at the address `memory`, each with a run of a value's bytes: (number of
        the value, address, first byte, bytes). complete: True: the copies are done on return."""
        with self._lock:
            # SAFETY: the core keeps the memory until it is told that the copies are done, or until this returns.
            whole = torch.frombuffer((ctypes.c_ubyte * size).from_address(memory), dtype=torch.uint8)
            try:
                for number, address, begin, count in places:
                    self._fill_run(whole[address - memory : address - memory + count], number, begin)
            finally:
                if complete:
                    self._copies.ticket().wait()

    def _fill_run(self, target: torch.Tensor, number: int, begin: int) -> None:
        value = self._values[number]
        if not isinstance(value, torch.Tensor) or not self._copies.takes(value):
            copy_run(value, begin, target)
        elif target.numel() == value.nbytes:
            self._copies.begin(target, value)
        else:
            if self._rows is None or self._rows[0] != number:
                self._rows = (number, row_major(value))
            self._copies.begin(target, self._rows[1][begin : begin + target.numel()])

    def ticket(self) -> Ticket:
        self._rows = None
        return self._copies.ticket()

    def wait_for(self, save: _core.PendingSave) -> None:
        """Waits for the copies, and tells the save that they are done."""
        try:
            self.ticket().wait()
        except BaseException as error:
            save.filled(f"the copy from the device failed: {error}")
            raise
        save.filled()
