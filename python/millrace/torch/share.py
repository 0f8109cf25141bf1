# SPDX-License-Identifier: Apache-2.0
"""Lets one rank read the data that several ranks restore alike, and sends it to the other ranks.

The rank that reads a box is chosen in the same way as the rank that writes it. With tiers on single nodes, each rank
therefore finds its data nearby, as long as the number of ranks stays the same.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import zlib
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from millrace import _core

from .dist import Group

PIECE_BYTES = 16 << 20  # bytes that are sent at once
_UNDER_WAY = 4  # pieces of all readers in progress, so that several readers send at the same time
_SUM_BYTES = 4


class Target(NamedTuple):
    """A box of a stored tensor, and the memory of this process that it is loaded into."""

    name: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    address: int
    nbytes: int
    holders: tuple[int, ...] | None  # as in Box


class _Set(NamedTuple):
    """Ranks that need the same boxes."""

    ranks: tuple[int, ...]
    targets: list[Target]
    readers: list[int]  # the reader of each target


class Share:
    """Divides the reads of a restore among the ranks. The constructor and exchange() are collective."""

    def __init__(self, group: Group, rank: int, targets: list[Target]) -> None:
        self._group = group
        self._rank = group.ranks[rank]
        self.mine: list[Target] = []  # the targets that this rank reads
        alike: dict[tuple[int, ...], list[Target]] = {}
        for target in targets:
            ranks = group.ranks if target.holders is None else target.holders
            if len(ranks) < 2 or target.name.startswith(f"rank{rank}/"):
                self.mine.append(target)
            else:
                alike.setdefault(ranks, []).append(target)
        # Only if all of these ranks want the same: one may have a model with other names and strict=False.
        wanted = {_digest(ranks): _digest(sorted(t[:3] for t in found)) for ranks, found in alike.items()}
        answers = dict(zip(group.ranks, group.gather(wanted), strict=True))
        self._sets: list[_Set] = []
        for ranks, found in sorted(alike.items()):  # in the same order on all ranks, so that there is no deadlock
            key = _digest(ranks)
            if any(answers.get(each, {}).get(key) != wanted[key] for each in ranks):
                self.mine += found
                continue
            found.sort(key=lambda target: target[:3])
            writers = _core.assign_writers([target.nbytes for target in found], len(ranks))
            readers = [ranks[writer] for writer in writers]
            self._sets.append(_Set(ranks, found, readers))
            self.mine += [t for t, reader in zip(found, readers, strict=True) if reader == self._rank]

    def exchange(self) -> None:
        """Sends the data that this rank has read and receives the rest. Raises ConnectionError for bytes that changed
        on the way."""
        changed: set[int] = set()
        group = self._group.of_cpu
        for ranks, targets, readers in self._sets:
            streams: dict[int, list[Target]] = {rank: [] for rank in ranks}
            for target, reader in zip(targets, readers, strict=True):
                streams[reader].append(target)
            under_way: deque[_Piece] = deque()
            free: list[torch.Tensor] = []
            pieces = _in_turns({reader: _pieces(stream) for reader, stream in streams.items()})
            for tag, (reader, runs) in enumerate(pieces):
                if len(under_way) == _UNDER_WAY:
                    free.append(under_way.popleft().finish(changed))
                buffer = free.pop() if free else torch.empty(PIECE_BYTES + _SUM_BYTES, dtype=torch.uint8)
                piece = _Piece(runs, buffer, reader)
                if reader == self._rank:
                    piece.send([rank for rank in ranks if rank != reader], tag, group)
                else:
                    piece.receive(tag, group)
                under_way.append(piece)
            while under_way:
                under_way.popleft().finish(changed)
        if changed:
            raise ConnectionError(f"tensors changed on their way from rank {min(changed)}")


_Run = tuple[int, int]  # address, bytes


class _Piece:
    """Runs of memory that one rank sends to the others. It sends them point to point, because all ranks would have to
    make a process group for each set of ranks. Since each rank sends the data that it read, no link carries a byte
    twice."""

    def __init__(self, runs: list[_Run], buffer: torch.Tensor, reader: int) -> None:
        self._runs, self._buffer, self._reader = runs, buffer, reader
        self._bytes = sum(size for _, size in runs)
        self._work: list[Any] = []
        self._is_received = False

    def send(self, ranks: list[int], tag: int, group: Any) -> None:
        at = self._buffer.data_ptr()
        for address, size in self._runs:
            ctypes.memmove(at, address, size)
            at += size
        ctypes.memmove(at, self._sum(), _SUM_BYTES)
        self._work = [dist.isend(self._message(), dst=rank, group=group, tag=tag) for rank in ranks]

    def receive(self, tag: int, group: Any) -> None:
        self._is_received = True
        self._work = [dist.irecv(self._message(), src=self._reader, group=group, tag=tag)]

    def finish(self, changed: set[int]) -> torch.Tensor:
        """Waits, and copies the received data into place. Returns the buffer."""
        for work in self._work:
            work.wait()
        if self._is_received:
            at = self._buffer.data_ptr()
            if self._sum() != ctypes.string_at(at + self._bytes, _SUM_BYTES):
                changed.add(self._reader)
            for address, size in self._runs:
                ctypes.memmove(address, at, size)
                at += size
        return self._buffer

    def _message(self) -> torch.Tensor:
        return self._buffer[: self._bytes + _SUM_BYTES]

    def _sum(self) -> bytes:
        return zlib.crc32(self._buffer[: self._bytes].numpy().data).to_bytes(_SUM_BYTES, "little")


def _pieces(targets: list[Target]) -> Iterator[list[_Run]]:
    """Yields the memory of `targets`, one after the other, in pieces."""
    runs: list[_Run] = []
    room = PIECE_BYTES
    for target in targets:
        at, end = target.address, target.address + target.nbytes
        while at < end:
            size = min(room, end - at)
            runs.append((at, size))
            at, room = at + size, room - size
            if room == 0:
                yield runs
                runs, room = [], PIECE_BYTES
    if runs:
        yield runs


def _in_turns(streams: dict[int, Iterator[list[_Run]]]) -> Iterator[tuple[int, list[_Run]]]:
    """Yields the first piece of each stream, then the second piece of each stream, and so on."""
    for pieces in itertools.zip_longest(*streams.values()):
        for reader, runs in zip(streams, pieces, strict=True):
            if runs is not None:
                yield reader, runs


def _digest(value: object) -> str:
    return hashlib.md5(repr(value).encode(), usedforsecurity=False).hexdigest()
