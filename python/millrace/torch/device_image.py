# SPDX-License-Identifier: Apache-2.0
"""From a GPU into the image of a checkpoint, which is the file: one copy, by a side stream."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch

from .tensors import Value


class Copies(Protocol):
    """What is asked of the devices. Tests answer for them."""

    def takes(self, value: Value) -> bool:
        """Whether the value is in a device's memory."""

    def begin(self, target: torch.Tensor, value: torch.Tensor) -> None:
        """Begins a copy of the elements, row by row, behind what was asked of the device so far. Both uint8 [bytes]
        and `value` stay until end()."""

    def end(self) -> None:
        """Waits for all copies that were begun."""


class CudaCopies:
    """Copies of CUDA tensors, on one side stream a device."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._used: set[torch.device] = set()
        self._kept: list[torch.Tensor] = []

    def takes(self, value: Value) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == "cuda"

    def begin(self, target: torch.Tensor, value: torch.Tensor) -> None:
        device = value.device
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

    def end(self) -> None:
        for device in self._used:
            self._streams[device].synchronize()
        self._used.clear()
        self._kept.clear()


class DeviceImage:
    """The copies of one save. `values` are those of the save, in order; REQUIRES: end() is called, whatever happens."""

    def __init__(self, copies: Copies, values: Sequence[Value]) -> None:
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

    def end(self) -> None:
        """Waits for the copies."""
        self._copies.end()


def row_major(value: torch.Tensor) -> torch.Tensor:
    """The bytes of the elements, row by row: uint8 [bytes]."""
    return value.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
