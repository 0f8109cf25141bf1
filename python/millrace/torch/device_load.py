# SPDX-License-Identifier: Apache-2.0
"""Restores into tensors on a GPU. Blocks of pinned memory are filled in turn; each is copied while the next is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import NamedTuple

import torch

from .device_image import ImageCopies, Ticket

BLOCK_BYTES = 64 << 20  # sixteen chunks, each with a hash; chunks that two blocks share are read twice
_BLOCKS = 3  # one block is being filled while the copies from the others run
_PAGE = 4096

Entry = tuple[str, tuple[int, ...], tuple[int, ...], int]  # (name, offset, shape, address), for Checkpoint.load


class DeviceTarget(NamedTuple):
    """A box of a stored tensor, and the tensor on a device that it is loaded into."""

    name: str
    offset: tuple[int, ...]
    value: torch.Tensor  # [shape of the box], row-major


class _Piece(NamedTuple):
    """A box within a target whose bytes are contiguous there."""

    target: DeviceTarget
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    begin: int  # the first of its bytes in the target
    nbytes: int


class _Block:
    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.ticket: Ticket | None = None  # the ticket of the copies from this block

    def wait(self) -> None:
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            ticket.wait()


@torch.no_grad()
def load(targets: Sequence[DeviceTarget], copies: ImageCopies, read: Callable[[list[Entry]], None]) -> None:
    """Loads all of `targets`. read: fills host memory, and verifies the data. Errors of `read` are passed on after the
    copies that were begun have ended."""
    blocks: list[_Block] = []
    try:
        for number, pieces in enumerate(_fill(targets, BLOCK_BYTES - _PAGE)):
            if len(blocks) < _BLOCKS:
                blocks.append(_Block(copies.block(BLOCK_BYTES)))
            block = blocks[number % _BLOCKS]
            block.wait()
            base = -block.memory.data_ptr() % _PAGE  # the first page
            memory = block.memory[base : base + BLOCK_BYTES - _PAGE]
            read([(p.target.name, p.offset, p.shape, memory.data_ptr() + place) for place, p in pieces])
            try:
                for place, piece in pieces:
                    room = piece.target.value.reshape(-1).view(torch.uint8)[piece.begin : piece.begin + piece.nbytes]
                    copies.begin(room, memory[place : place + piece.nbytes])
            finally:
                block.ticket = copies.ticket()
    finally:
        for block in blocks:
            block.wait()


def _fill(targets: Sequence[DeviceTarget], size: int) -> Iterator[list[tuple[int, _Piece]]]:
    """Yields the contents of each block of `size` bytes: (place in the block, piece). A piece has the same place within
    its page as in the stored tensor, whose first byte is the first byte of a page of the file. Whole pages are
    therefore read straight into the block."""
    block: list[tuple[int, _Piece]] = []
    used = 0
    for target in targets:
        shape = tuple(target.value.shape)
        for piece in _cut(target, target.offset, shape, 0, size - _PAGE):
            place = used + (piece.begin - used) % _PAGE if piece.nbytes >= _PAGE else -(-used // 64) * 64
            if place + piece.nbytes > size:
                yield block
                block, place = [], piece.begin % _PAGE if piece.nbytes >= _PAGE else 0
            block.append((place, piece))
            used = place + piece.nbytes
    if block:
        yield block


def _cut(
    target: DeviceTarget, offset: tuple[int, ...], shape: tuple[int, ...], begin: int, most: int
) -> Iterator[_Piece]:
    """Yields pieces of at most `most` bytes, in the order of the bytes."""
    size = prod(shape) * target.value.element_size()
    if size <= most:
        yield _Piece(target, offset, shape, begin, size)
        return
    axis = next(axis for axis, length in enumerate(shape) if length > 1)
    row = size // shape[axis]
    rows = max(1, most // row)
    for at in range(0, shape[axis], rows):
        moved = (*offset[:axis], offset[axis] + at, *offset[axis + 1 :])
        part = (*shape[:axis], min(rows, shape[axis] - at), *shape[axis + 1 :])
        yield from _cut(target, moved, part, begin + at * row, most)
