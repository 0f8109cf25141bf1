# SPDX-License-Identifier: Apache-2.0
"""Describes tensors and arrays for a checkpoint: a safetensors dtype, a box of a global shape, and dense CPU memory."""

from __future__ import annotations

import math
from functools import lru_cache
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


# A plain tensor: every rank has all of it, and one rank writes it.
EVERY_RANK: tuple[int, ...] | None = None


class Box:
    """The part of one tensor that this process has. A snapshot makes thousands of boxes, so this is a plain class with
    slots."""

    __slots__ = ("dense", "dtype", "global_shape", "holders", "local", "nbytes", "offset", "place", "shape")

    def __init__(
        self,
        local: Value,
        dtype: str,
        shape: tuple[int, ...],
        *,
        dense: bool,
        global_shape: tuple[int, ...] | None = None,
        offset: tuple[int, ...] | None = None,
        holders: tuple[int, ...] | None = EVERY_RANK,
        place: int = 0,
    ) -> None:
        self.local = local  # [*shape], the elements [offset, offset + shape) of the whole
        self.dtype = dtype  # safetensors name
        self.shape = shape
        self.nbytes = int(local.nbytes)
        self.dense = dense  # `local` is plain row-major CPU memory
        self.global_shape = shape if global_shape is None else global_shape
        self.offset = (0,) * len(shape) if offset is None else offset
        # The ranks that have this box. One of them writes it. This rank is holders[place]. Empty: this rank does not
        # write it.
        self.holders = holders
        self.place = place


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the safetensors name of a dtype. Raises TypeError if there is none."""
    if dtype not in _TORCH_NAMES:
        raise TypeError(f"safetensors has no dtype for {dtype}")
    return _TORCH_NAMES[dtype]


def torch_dtype(name: str) -> torch.dtype:
    """Returns the torch dtype of a safetensors name. Raises NotImplementedError for a dtype that torch does not
    have."""
    if name not in _TORCH_DTYPES:
        raise NotImplementedError(f"dtype {name}")
    return _TORCH_DTYPES[name]


def is_value(value: object) -> bool:
    """Returns whether `value` is a tensor or an array."""
    return isinstance(value, (torch.Tensor, np.ndarray))


def box_of(value: Value) -> Box:
    """Returns the Box of a value. Raises TypeError for values that safetensors cannot store, NotImplementedError for a
    DTensor whose placement is not a box (partial sums, shards that are several runs of rows)."""
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return _tensor_box(value)  # type: ignore[arg-type]
    if isinstance(value, np.ndarray):
        return _array_box(value)
    if is_dtensor(value):
        return _dtensor_box(value)
    if kind.__name__ == "ShardedTensor":
        raise TypeError(
            "a ShardedTensor, of FullyShardedDataParallel (FSDP1): shard with fully_shard (FSDP2), whose state has "
            "DTensors; a ShardedTensor"
        )
    if isinstance(value, torch.Tensor) and value.is_nested:
        raise TypeError("a nested tensor")
    raise TypeError(f"a tensor of class {kind.__name__}")


def _tensor_box(value: torch.Tensor) -> Box:
    dtype = _TORCH_NAMES.get(value.dtype)
    if dtype is None:
        raise TypeError(f"a tensor of {value.dtype}")
    if value.is_nested:
        raise TypeError("a nested tensor")
    if value.layout is not torch.strided or value.is_meta:
        raise TypeError(f"a tensor that is not dense memory ({value.layout} on {value.device})")
    return Box(value, dtype, tuple(value.shape), dense=is_dense(value))


def new_value(dtype: str, shape: tuple[int, ...], *, array: bool) -> Value:
    """Returns an uninitialised tensor or array on the CPU. Raises NotImplementedError for a dtype that has no
    equivalent."""
    known = _NUMPY_DTYPES if array else _TORCH_DTYPES
    if dtype not in known:
        raise NotImplementedError(f"dtype {dtype}")
    return np.empty(shape, _NUMPY_DTYPES[dtype]) if array else torch.empty(shape, dtype=_TORCH_DTYPES[dtype])


def new_like(parameter: torch.Tensor, dtype: str, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Returns memory for a tensor that belongs to `parameter`, sharded like it and on its device; None if any memory
    will do."""
    if tuple(parameter.shape) != shape or dtype not in _TORCH_DTYPES:
        return None
    if is_dtensor(parameter):
        return torch.empty_like(parameter, dtype=_TORCH_DTYPES[dtype])
    # A tensor of another dtype is cast by load_state_dict() of the optimizer; a small one may belong on the CPU
    # ("step").
    if parameter.is_cpu or parameter.dim() == 0 or _TORCH_DTYPES[dtype] is not parameter.dtype:
        return None
    return torch.empty(shape, dtype=parameter.dtype, device=parameter.device)


def misfits(values: Value, dtype: str, target: str) -> int:
    """Returns how many elements of `values`, of `dtype`, change beyond rounding when they become `target`: integers
    that wrap around, fractions that become whole numbers, finite values that become infinite or NaN."""
    source, wanted = _TORCH_DTYPES[dtype], _TORCH_DTYPES[target]
    if _holds(source, wanted):
        return 0
    flat = (torch.from_numpy(values) if isinstance(values, np.ndarray) else values).detach().reshape(-1)
    count = 0
    for begin in range(0, flat.numel(), _ELEMENTS_AT_ONCE):
        part = flat[begin : begin + _ELEMENTS_AT_ONCE]
        if wanted.is_floating_point or wanted.is_complex:
            became = part.to(wanted)
            became = became if became.dtype.itemsize > 1 else became.float()  # fp8 has no isfinite
            changed = became.isfinite() != part.isfinite()
            if wanted.itemsize == 1:  # PyTorch 2.13 converts larger values to the largest fp8
                changed |= part.abs() > _largest_that_rounds_to(wanted)
            count += int(changed.sum())
            continue
        # NumPy is used because torch cannot compare unsigned integers of more than 8 bits.
        plain = (part.double() if part.is_floating_point() else part).numpy()
        with np.errstate(all="ignore"):
            became_whole = plain.astype(_NUMPY_DTYPES[target])
            count += int((became_whole.astype(plain.dtype) != plain).sum())
    return count


def _largest_that_rounds_to(dtype: torch.dtype) -> float:
    limits = torch.finfo(dtype)
    return float(limits.max + 2.0 ** math.floor(math.log2(limits.max)) * limits.eps / 2)


def misfit_text(step: int, found: list[str]) -> str:
    """Returns the warning about the tensors of a step that have such elements."""
    shown = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
    return (
        f"step {step}: values do not fit the narrower dtype that they are restored into; integers wrapped around, others "
        f"became infinite or lost their fraction: {shown}"
    )


_ELEMENTS_AT_ONCE = 1 << 24  # elements of a conversion that are checked at once


def _holds(source: torch.dtype, wanted: torch.dtype) -> bool:
    """Returns whether every value of `source` is about the same in `wanted`."""
    if source is torch.bool or wanted.is_complex or source.is_complex:
        return True  # torch itself warns about dropped imaginary parts
    if wanted is torch.bool:
        return False
    if not wanted.is_floating_point:
        if source.is_floating_point:
            return False
        have, need = torch.iinfo(wanted), torch.iinfo(source)
        return have.min <= need.min and have.max >= need.max
    largest = torch.finfo(source).max if source.is_floating_point else torch.iinfo(source).max
    return torch.finfo(wanted).max * 1.01 >= largest  # bfloat16 ends a little before float32


def is_writable(value: Value) -> bool:
    """Returns whether the elements may be written in place."""
    return not isinstance(value, np.ndarray) or bool(value.flags.writeable)


def is_dense(value: torch.Tensor) -> bool:
    """Returns whether the elements are plain row-major CPU memory."""
    return value.is_cpu and value.is_contiguous() and not value.is_conj() and not value.is_neg()


def row_major(value: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of the elements, row by row: uint8 [bytes]."""
    flat = value.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)  # a single element may have any stride


def address(value: Value) -> int:
    """Returns the address of the first element."""
    return int(value.ctypes.data) if isinstance(value, np.ndarray) else value.data_ptr()


def storage_address(value: Value) -> int:
    """Returns an address that is the same for all views of one memory."""
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().data_ptr()
    while isinstance(value.base, np.ndarray):
        value = value.base
    return int(value.ctypes.data)


def identity(value: Value) -> tuple[Any, ...]:
    """Returns a key that is equal for values with the same elements of the same memory (tied weights), while both are
    alive and have any elements."""
    if is_dtensor(value):
        local = value.to_local()  # type: ignore[union-attr]
        return "dtensor", value.shape, *identity(local)
    if isinstance(value, np.ndarray):
        return "array", address(value), value.shape, value.strides, value.dtype
    return "tensor", value.device, address(value), value.shape, value.stride(), value.dtype


def dense_identity(box: Box) -> tuple[Any, ...]:
    """Returns the same kind of key for a dense box, at less cost: equal for boxes with the same elements."""
    return "dense", address(box.local), box.shape, box.offset, box.global_shape, box.dtype


def _array_box(value: np.ndarray) -> Box:
    if type(value) is not np.ndarray or value.dtype.name not in _NUMPY_NAMES or not value.dtype.isnative:
        raise TypeError(f"an array of class {type(value).__name__} and dtype {value.dtype}")
    return Box(value, _NUMPY_NAMES[value.dtype.name], value.shape, dense=bool(value.flags.c_contiguous))


def is_dtensor(value: object) -> bool:
    """Returns whether `value` is a DTensor."""
    # There can be no DTensor before torch.distributed.tensor is imported, and importing it takes a second.
    return type(value).__name__ == "DTensor" and type(value).__module__.startswith("torch.distributed")


def _dtensor_box(value: Any) -> Box:
    local = value.to_local().detach()
    if local.dtype not in _TORCH_NAMES:
        raise TypeError(f"a DTensor of {local.dtype}")
    mesh, placements = value.device_mesh, value.placements
    shape, offset, replicated = _place(tuple(value.shape), mesh, placements)
    if tuple(local.shape) != shape:
        raise NotImplementedError(f"a DTensor whose local shape is {tuple(local.shape)}, not {shape}")
    if value.numel() == 0:  # the first rank of the mesh writes it
        replicated = (True,) * mesh.ndim
    holders, place = _holders(mesh, replicated) if local.numel() > 0 or value.numel() == 0 else ((), 0)
    return Box(
        local,
        _TORCH_NAMES[local.dtype],
        shape,
        dense=is_dense(local),
        global_shape=tuple(value.shape),
        offset=offset,
        holders=holders,
        place=place,
    )


def _place(
    shape: tuple[int, ...], mesh: Any, placements: Any
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[bool, ...]]:
    """Returns shape and offset of this rank's box, and along which dimensions of the mesh it is replicated."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    coordinate = mesh.get_coordinate()
    if coordinate is None:  # a rank outside the mesh has nothing
        return (0,) * len(shape), (0,) * len(shape), (True,) * mesh.ndim
    runs = [[(0, size)] for size in shape]  # for each dimension: the (begin, end) that this rank has
    for mesh_dim, placement in enumerate(placements):
        ranks, rank = mesh.size(mesh_dim), coordinate[mesh_dim]
        if type(placement) is Shard:
            runs[placement.dim] = _chunk(runs[placement.dim], ranks, rank)
        elif type(placement) is _StridedShard:
            # FSDP2 shards the shards of tensor parallelism: this rank has a chunk of each of `split_factor` chunks.
            whole, factor = runs[placement.dim], int(placement.split_factor)
            parts = [_chunk(_chunk(whole, factor, part), ranks, rank) for part in range(factor)]
            runs[placement.dim] = _joined([run for part in parts for run in part])
        elif type(placement) is not Replicate:
            raise NotImplementedError(f"a DTensor placed as {placement!r}")
    for dimension in runs:
        if len(dimension) > 1:
            raise NotImplementedError(f"a DTensor placed as {placements!r}, which is no box on this rank")
    begins = tuple(dimension[0][0] if dimension else size for dimension, size in zip(runs, shape, strict=True))
    sizes = tuple(dimension[0][1] - dimension[0][0] if dimension else 0 for dimension in runs)
    return sizes, begins, tuple(type(placement) is Replicate for placement in placements)


def _chunk(runs: list[tuple[int, int]], count: int, index: int) -> list[tuple[int, int]]:
    """Returns the positions in `runs` that belong to chunk `index` when torch.chunk makes `count` chunks. All chunks
    have the size of the first one, except the last ones, which may be shorter or empty."""
    total = sum(end - begin for begin, end in runs)
    size = -(-total // count)
    low, high = min(size * index, total), min(size * (index + 1), total)
    found, at = [], 0
    for begin, end in runs:
        first, last = max(low, at), min(high, at + end - begin)
        if first < last:
            found.append((begin + first - at, begin + last - at))
        at += end - begin
    return found


def _joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for begin, end in runs:
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined


@lru_cache(maxsize=256)
def _holders(mesh: Any, replicated: tuple[bool, ...]) -> tuple[tuple[int, ...], int]:
    """Returns the ranks that have the same box as this rank, and this rank's place among them."""
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return (), 0
    same = [slice(None) if free else at for free, at in zip(replicated, coordinate, strict=True)]
    ranks = mesh.mesh[tuple(same)].flatten().tolist()
    return tuple(ranks), ranks.index(mesh.mesh[tuple(coordinate)].item())
