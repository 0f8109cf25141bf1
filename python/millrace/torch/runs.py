# SPDX-License-Identifier: Apache-2.0
"""Copies runs of bytes of tensors and arrays whose elements are not in order, without a copy of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import torch

from .tensors import Value, row_major

_BLOCK_BYTES = 1 << 20  # bytes that are put in order at once


@torch.no_grad()
def copy_run(value: Value, begin: int, target: torch.Tensor) -> None:
    """Copies bytes [begin, begin + size of target) of the elements, row by row, to `target`: uint8 [bytes]."""
    size = int(value.nbytes) // max(prod(value.shape), 1)
    end = begin + target.numel()
    at = begin // size * size  # the first byte of the elements that come next
    for elements in _elements(value, begin // size, -(-end // size), max(_BLOCK_BYTES // size, 1)):
        given = _bytes(elements)
        low, high = max(begin, at), min(end, at + given.numel())
        target[low - begin : high - begin].copy_(given[low - at : high - at])
        at += given.numel()


def _elements(value: Value, first: int, last: int, most: int) -> Iterator[Value]:
    """Yields the elements [first, last) in the order of rows, as values of any shape with at most `most` elements or
    one row."""
    shape = tuple(value.shape)
    if len(shape) < 2:
        flat = value.reshape(-1)
        for low in range(first, last, most):
            yield flat[low : min(low + most, last)]
        return
    row = prod(shape[1:])
    while first < last:
        number, place = divmod(first, row)
        if place > 0 or last - first < row or row > most:  # a part of one row
            end = min(last, (number + 1) * row)
            yield from _elements(value[number], place, end - number * row, most)
        else:
            rows = min((last - first) // row, max(most // row, 1))
            end = first + rows * row
            yield value[number : number + rows]
        first = end


def _bytes(elements: Value) -> torch.Tensor:
    """Returns the bytes of the elements in the order of rows: uint8 [bytes]."""
    if isinstance(elements, np.ndarray):  # a copy, since torch warns of arrays that are read-only
        return torch.from_numpy(np.array(elements, order="C").reshape(-1).view(np.uint8))
    return row_major(elements.cpu())
