# SPDX-License-Identifier: Apache-2.0
"""Makes the copy of a state dict that `dcp.async_save` writes in the background."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ..state import Index, Path, format_path
from ..tensors import is_dtensor


class Stager:
    """Copies a state dict into CPU memory. It keeps the memory from save to save (pinned, if tensors are on a GPU), so
    that only the first save pays for touching new memory. Satisfies torch's AsyncStager. `stage` returns when the copy
    is complete; training may then continue.

    StorageWriter calls `release()` when the previous copy is no longer read. The next copy then reuses the memory.
    Without this call, each copy gets new memory. For one thread at a time.
    """

    _synchronize_after_execute = False

    def __init__(self) -> None:
        self._free: dict[Path, torch.Tensor] = {}
        self._in_use: dict[Path, torch.Tensor] = {}

    @property
    def should_synchronize_after_execute(self) -> bool:
        return self._synchronize_after_execute

    @torch.no_grad()
    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy that later changes of `state_dict` do not affect. Raises TypeError naming the path (a
        ShardedTensor, a nested or sparse tensor), MemoryError."""
        self._in_use = {}
        streams: dict[torch.device, torch.cuda.Stream] = {}
        staged = self._copy(state_dict, (), streams)
        for stream in streams.values():
            stream.synchronize()
        return staged

    def release(self) -> None:
        """Allows the next copy to overwrite the last copy, which has been read."""
        self._free, self._in_use = self._in_use, {}

    def synchronize_staging(self) -> None:
        """Does nothing: `stage` returns when the copy is complete."""

    def close(self) -> None:
        """Frees the memory."""
        self._free, self._in_use = {}, {}

    def _copy(self, value: Any, path: Path, streams: dict[torch.device, torch.cuda.Stream]) -> Any:
        if type(value) is dict:
            return {key: self._copy(item, (*path, key), streams) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self._copy(item, (*path, Index(at)), streams) for at, item in enumerate(value))
        if is_dtensor(value):
            local = self._tensor(value.to_local(), path, streams)
            return type(value).from_local(
                local, value.device_mesh, value.placements, run_check=False, shape=value.shape, stride=value.stride()
            )
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path, streams)
        if type(value).__name__ == "ShardedTensor":
            raise TypeError(
                f"{format_path(path)}: a ShardedTensor; give async_save torch's own DefaultStager as async_stager"
            )
        return copy.deepcopy(value)

    def _tensor(self, value: torch.Tensor, path: Path, streams: dict[torch.device, torch.cuda.Stream]) -> torch.Tensor:
        if value.is_nested or value.layout is not torch.strided:
            kind = "a nested tensor" if value.is_nested else f"a tensor that is not dense memory ({value.layout})"
            raise TypeError(f"{format_path(path)}: {kind} cannot be stored in a checkpoint")
        on_gpu = value.device.type == "cuda"
        buffer = self._free.pop(path, None)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=on_gpu)
        self._in_use[path] = buffer
        if not on_gpu:
            return buffer.copy_(value)
        if value.device not in streams:
            streams[value.device] = torch.cuda.Stream(value.device)
            streams[value.device].wait_stream(torch.cuda.current_stream(value.device))
        with torch.cuda.stream(streams[value.device]):
            return buffer.copy_(value, non_blocking=True)
