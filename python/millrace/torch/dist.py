# SPDX-License-Identifier: Apache-2.0
"""Finds the rank of this process, and provides the two small collectives that a Checkpointer needs."""

from __future__ import annotations

import atexit
import functools
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from millrace import _arguments

T = TypeVar("T")


def initialized() -> bool:
    """Returns whether torch.distributed has a default process group."""
    return dist.is_available() and dist.is_initialized()


def resolve_rank(rank: int | None, world_size: int | None, group: Any = None) -> tuple[int, int]:
    """Returns the caller's values; else those of torch.distributed if it is initialised; else RANK and WORLD_SIZE; else
    0 of 1.

    Raises ValueError if only one of the two is given, or if they do not fit together.
    """
    if rank is None and world_size is None and initialized():
        rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if rank is None and world_size is None:  # one of them alone is an error
        rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    return _arguments.resolve_rank(rank, world_size)


@functools.cache
def settle_at_exit() -> None:
    """Lets gloo's threads finish before the interpreter ends.

    A thread of gloo releases the tensors of a collective just after the collective has returned, and takes the GIL for
    this. In an interpreter that is ending, this aborts the process with SIGABRT (pytorch/pytorch#190489).
    destroy_process_group does not wait for these threads if a DDP model or a device mesh has used the group.
    """
    atexit.register(time.sleep, 0.05)  # sleeping releases the GIL; the threads need microseconds


class Group:
    """The ranks that share a checkpoint. Object collectives use the group's backend (with NCCL alone, set the current
    device first). A single rank sends no messages."""

    def __init__(self, world_size: int, group: Any = None) -> None:
        self._group = group
        self._world_size = world_size
        if world_size == 1:
            return
        if not initialized():
            raise ValueError(f"world_size is {world_size}: call torch.distributed.init_process_group first")
        if dist.get_world_size(group) != world_size:
            raise ValueError(f"world_size is {world_size}, the process group has {dist.get_world_size(group)} ranks")
        settle_at_exit()

    def from_rank0(self, rank: int, ask: Callable[[], T]) -> T:
        """Calls `ask()` on rank 0 and returns the result on every rank. If `ask()` raises, every rank raises: rank 0
        the original error, the other ranks RuntimeError."""
        if self._world_size == 1:
            return ask()
        error: Exception | None = None
        answer: list[Any] = [None, None]
        if rank == 0:
            try:
                answer[0] = ask()
            except Exception as caught:  # sent to the other ranks, which would wait forever, and raised below
                error = caught
                answer[1] = f"{type(caught).__name__}: {caught}"
        source = 0 if self._group is None else dist.get_global_rank(self._group, 0)
        dist.broadcast_object_list(answer, src=source, group=self._group)
        if error is not None:
            raise error
        if answer[1] is not None:
            raise RuntimeError(f"on rank 0: {answer[1]}")
        return answer[0]

    def gather(self, value: T) -> list[T]:
        """Returns `value` of every rank, by rank."""
        if self._world_size == 1:
            return [value]
        values: list[Any] = [None] * self._world_size
        dist.all_gather_object(values, value, group=self._group)
        return values

    @functools.cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks, in torch.distributed's own numbers."""
        return tuple(dist.get_process_group_ranks(self._group)) if self._world_size > 1 else (0,)

    def has_cpu(self) -> bool:
        """Returns whether the group can send CPU memory."""
        return self._world_size > 1 and (self._group is None or "gloo" in dist.get_backend_config(self._group))

    @functools.cached_property
    def of_cpu(self) -> Any:
        """A process group of the same ranks that can send CPU memory. The first use is collective. Raises ValueError if
        there is none."""
        if self.has_cpu():
            has_gloo = "gloo" in dist.get_backend_config(self._group)
            return self._group if has_gloo else dist.new_group(backend="gloo")
        raise ValueError("the process group sends nothing from the CPU: make it with backend='cpu:gloo,cuda:nccl'")
