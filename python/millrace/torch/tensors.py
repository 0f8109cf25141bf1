# SPDX-License-Identifier: Apache-2.0
"""Tensors and arrays as the checkpoint sees them: a safetensors dtype, a box of a global shape, and dense CPU
memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Value = torch.Tensor | np.ndarray

_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32",
    "int64": "I64", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
_TORCH_NAMES = {getattr(torch, key): name for key, name in _NAMES.items() if hasattr(torch, key)}
_TORCH_DTYPES = {name: dtype for dtype, name in _TORCH_NAMES.items()}
_NUMPY_NAMES = {key: name for key, name in _NAMES.items() if key != "bfloat16" and "float8" not in key}
_NUMPY_DTYPES = {name: np.dtype(dtype) for dtype, name in _NUMPY_NAMES.items()}


@dataclass(frozen=True)
class Box:
    """What this process holds of one tensor."""

    local: Value  # [*shape], the elements [offset, offset + shape) of the whole
    dtype: str  # safetensors name
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    # Whether this rank writes it; None: every rank holds the whole, and one writer is chosen for all.
    writes: bool | None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.local.shape)

    @property
    def nbytes(self) -> int:
        return int(self.local.nbytes)


def is_value(value: object) -> bool:
    """Whether `value` is a tensor or an array."""
    return isinstance(value, (torch.Tensor, np.ndarray))


def box_of(value: Value) -> Box:
    """Raises TypeError for what safetensors cannot hold, NotImplementedError for a DTensor placed in a way that is not
    a box (partial sums, strided shards)."""
    if isinstance(value, np.ndarray):
        return _array_box(value)
    if _is_dtensor(value):
        return _dtensor_box(value)
    if value.dtype not in _TORCH_NAMES:
        raise TypeError(f"a tensor of {value.dtype}")
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"a tensor of class {type(value).__name__}")
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        raise TypeError(f"a tensor that is not dense memory ({value.layout} on {value.device})")
    shape = tuple(value.shape)
    return Box(value.detach(), _TORCH_NAMES[value.dtype], shape, (0,) * len(shape), None)


def new_value(dtype: str, shape: tuple[int, ...], *, array: bool) -> Value:
    """An uninitialised tensor or array on the CPU. Raises NotImplementedError for a dtype that has no equivalent."""
    known = _NUMPY_DTYPES if array else _TORCH_DTYPES
    if dtype not in known:
        raise NotImplementedError(f"dtype {dtype}")
    return np.empty(shape, _NUMPY_DTYPES[dtype]) if array else torch.empty(shape, dtype=_TORCH_DTYPES[dtype])


def new_like(parameter: torch.Tensor, dtype: str, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Room for a tensor that belongs to `parameter`, sharded as it is; None when it need not be sharded."""
    if not _is_dtensor(parameter) or tuple(parameter.shape) != shape or dtype not in _TORCH_DTYPES:
        return None
    return torch.empty_like(parameter, dtype=_TORCH_DTYPES[dtype])


def is_dense(value: Value) -> bool:
    """Whether the elements are plain row-major CPU memory that may be written."""
    if isinstance(value, np.ndarray):
        return bool(value.flags.c_contiguous and value.flags.writeable)
    return value.device.type == "cpu" and value.is_contiguous() and not value.is_conj() and not value.is_neg()


def address(value: Value) -> int:
    """Where the first element lies."""
    return int(value.ctypes.data) if isinstance(value, np.ndarray) else value.data_ptr()


def storage_address(value: Value) -> int:
    """The same for all views of one memory."""
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().data_ptr()
    while isinstance(value.base, np.ndarray):
        value = value.base
    return int(value.ctypes.data)


def identity(value: Value) -> tuple[Any, ...]:
    """Equal for values that are the same elements of the same memory (tied weights), while both are alive and have
    elements at all."""
    if _is_dtensor(value):
        return "dtensor", value.shape, *identity(value.to_local())  # type: ignore[union-attr]
    if isinstance(value, np.ndarray):
        return "array", address(value), value.shape, value.strides, value.dtype
    return "tensor", value.device, address(value), value.shape, value.stride(), value.dtype


class Staging:
    """Turns tensors into dense CPU memory for a save. CUDA tensors go to pinned buffers, kept from save to save."""

    def __init__(self) -> None:
        self._pinned: dict[str, torch.Tensor] = {}

    def to_cpu(self, values: Iterable[tuple[str, Value]]) -> list[Value]:
        """One dense value for each (name, value), in order; all copies have ended on return."""
        streams: dict[torch.device, torch.cuda.Stream] = {}
        dense = [self._start(name, value, streams) for name, value in values]
        for stream in streams.values():
            stream.synchronize()
        return dense

    def _start(self, name: str, value: Value, streams: dict[torch.device, torch.cuda.Stream]) -> Value:
        if isinstance(value, np.ndarray):
            return value if value.flags.c_contiguous else value.copy(order="C")
        if value.device.type != "cuda":
            return value.cpu().resolve_conj().resolve_neg().contiguous()
        if value.device not in streams:
            streams[value.device] = torch.cuda.Stream(value.device)
            streams[value.device].wait_stream(torch.cuda.current_stream(value.device))
        buffer = self._pinned.get(name)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            buffer = self._pinned[name] = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        with torch.cuda.stream(streams[value.device]):
            buffer.copy_(value.resolve_conj().resolve_neg(), non_blocking=True)
        return buffer


def _array_box(value: np.ndarray) -> Box:
    if type(value) is not np.ndarray or value.dtype.name not in _NUMPY_NAMES or not value.dtype.isnative:
        raise TypeError(f"an array of class {type(value).__name__} and dtype {value.dtype}")
    return Box(value, _NUMPY_NAMES[value.dtype.name], value.shape, (0,) * value.ndim, None)


def _is_dtensor(value: object) -> bool:
    # Without torch.distributed.tensor imported there can be no DTensor, and importing it takes a second.
    return type(value).__name__ == "DTensor" and type(value).__module__.startswith("torch.distributed")


def _dtensor_box(value: Any) -> Box:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    for placement in value.placements:
        if type(placement) not in (Shard, Replicate):
            raise NotImplementedError(f"a DTensor placed as {placement!r}")
    local = value.to_local().detach()
    if local.dtype not in _TORCH_NAMES:
        raise TypeError(f"a DTensor of {local.dtype}")
    shape, offset = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
    if tuple(local.shape) != tuple(shape):
        raise NotImplementedError(f"a DTensor whose local shape is {tuple(local.shape)}, not {tuple(shape)}")
    place = value.device_mesh.get_coordinate()
    # Of equal replicas the one at coordinate 0 writes; of a tensor without elements, the rank at the origin.
    first = place is not None and all(
        at == 0
        for at, placement in zip(place, value.placements, strict=True)
        if type(placement) is Replicate or value.numel() == 0
    )
    writes = first and (local.numel() > 0 or value.numel() == 0)
    return Box(local, _TORCH_NAMES[local.dtype], tuple(value.shape), tuple(offset), writes)
