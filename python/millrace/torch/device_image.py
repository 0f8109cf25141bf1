# SPDX-License-Identifier: Apache-2.0
"""Between a GPU and pinned memory, by a side stream: into the image of a checkpoint, which is the file, and back."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch

from .tensors import Value


class Ticket(Protocol):
    """Copies that were begun. They read what they copy, and write where they were told, until wait() has returned."""

    def wait(self) -> None:
        """Waits for the copies."""

    def hold(self) -> None:
        """What is asked of the devices from now on, on their current streams, comes after the copies."""


class ImageCopies(Protocol):
    """What is asked of the devices. Tests answer for them."""

    def takes(self, value: Value) -> bool:
        """Whether the value is in a device's memory."""

    def block(self, size: int) -> torch.Tensor:
        """Memory of the host that copies run from and to: uint8 [size]."""

    def begin(self, target: torch.Tensor, value: torch.Tensor) -> None:
        """Begins a copy of the elements, row by row, behind what was asked of the device so far. One of the two is on a
        device. target: uint8 [bytes]."""

    def ticket(self) -> Ticket:
        """Of the copies that were begun since the last one."""


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
    """Copies of CUDA tensors, on one side stream a device."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._used: set[torch.device] = set()
        self._kept: list[torch.Tensor] = []

    def takes(self, value: Value) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == "cuda"

    def block(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def begin(self, target: torch.Tensor, value: torch.Tensor) -> None:
        device = target.device if value.device.type == "cpu" else value.device
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        stream = self._streams[device]
        if device not in self._used:
            self._used.add(device)
            stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
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
    """The copies of one save. `values` are those of the save, in order. REQUIRES: the ticket is waited for, whatever
    happens."""

    def __init__(self, copies: ImageCopies, values: Sequence[Value]) -> None:
        self._copies = copies
        self._values = values

    @torch.no_grad()
    def fill(self, image: int, size: int, places: Sequence[tuple[int, int, int]]) -> None:
        """Begins to fill places of the image at the address `image`: (number of the value, address, bytes)."""
        # SAFETY: the core keeps the image until it is told that the copies are done.
        memory = torch.frombuffer((ctypes.c_ubyte * size).from_address(image), dtype=torch.uint8)
        for number, address, count in places:
            value = self._values[number]
            assert isinstance(value, torch.Tensor)
            self._copies.begin(memory[address - image : address - image + count], value)

    def ticket(self) -> Ticket:
        return self._copies.ticket()


def row_major(value: torch.Tensor) -> torch.Tensor:
    """The bytes of the elements, row by row: uint8 [bytes]."""
    return value.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
