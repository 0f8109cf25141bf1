# SPDX-License-Identifier: Apache-2.0
"""The shared part of the drop-ins for `safetensors.numpy` and `safetensors.torch`: opening, indices, slices. A
Framework adds arrays or tensors."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Generic, TypeVar

from millrace import _core

T = TypeVar("T")
Path = str | os.PathLike[str]
Index = int | slice | EllipsisType
Entry = tuple[str, str, tuple[int, ...], tuple[int, ...], tuple[int, ...], int]


@dataclass(frozen=True)
class Framework(Generic[T]):
    """How one kind of value is made and returned."""

    new: Callable[[str, tuple[int, ...]], T]  # (dtype, shape) -> uninitialised CPU memory
    address: Callable[[T], int]
    reshape: Callable[[T, tuple[int, ...]], T]
    give: Callable[[T], T]  # moves a value to the requested device


def entry(name: str, dtype: str, shape: Iterable[int], address: int) -> Entry:
    """Returns a whole tensor in the form that the core takes."""
    whole = tuple(shape)
    return name, dtype, whole, (0,) * len(whole), whole, address


def write(path: Path, entries: list[Entry], metadata: Mapping[str, str] | None, durable: bool) -> None:
    """Writes a file. Raises ValueError (names, metadata), OSError."""
    _core.save_tensors(os.fspath(path), entries, dict(metadata or {}), durable)


class File(Generic[T]):
    """An open safetensors file, with the methods of `safetensors.safe_open`."""

    def __init__(self, path: Path, framework: Framework[T]) -> None:
        self._path = os.fspath(path)
        self._framework = framework
        self._file: _core.TensorFile | None = _core.TensorFile(self._path)
        self._tensors = self._file.tensors

    def __enter__(self) -> File[T]:
        self._opened()
        return self

    def __exit__(self, *exception: object) -> None:
        self._file = None

    def keys(self) -> list[str]:
        """Returns the names, in alphabetical order."""
        return sorted(self._tensors)

    def offset_keys(self) -> list[str]:
        """Returns the names, in the order of their bytes."""
        return list(self._tensors)

    def metadata(self) -> dict[str, str] | None:
        """Returns the file's own strings; None if it has none."""
        return self._opened().metadata or None

    def get_tensor(self, name: str) -> T:
        """Returns one tensor. Raises KeyError, OSError."""
        return self.get_tensors([name])[name]

    def get_tensors(self, names: Iterable[str]) -> dict[str, T]:
        """Returns several tensors, which are read together: the disk gets all requests at once."""
        values: dict[str, T] = {}
        targets = []
        for name in names:
            dtype, shape = self._found(name)
            values[name] = self._framework.new(dtype, shape)
            targets.append((name, (0,) * len(shape), shape, self._framework.address(values[name])))
        self._opened().load(targets)
        return {name: self._framework.give(value) for name, value in values.items()}

    def get_slice(self, name: str) -> Slice[T]:
        """Returns a tensor whose index reads only the requested part: f.get_slice("w")[:4]."""
        self._found(name)
        return Slice(self, name)

    def _found(self, name: str) -> tuple[str, tuple[int, ...]]:
        if name not in self._tensors:
            raise KeyError(f"{self._path} has no tensor {name}")
        return self._tensors[name]

    def _opened(self) -> _core.TensorFile:
        if self._file is None:
            raise ValueError(f"{self._path} is closed")
        return self._file

    def _read(self, name: str, index: tuple[Index, ...]) -> T:
        dtype, shape = self._found(name)
        offset, box, kept = _box_of(index, shape)
        value = self._framework.new(dtype, box)
        self._opened().load([(name, offset, box, self._framework.address(value))])
        return self._framework.give(self._framework.reshape(value, kept))


class Slice(Generic[T]):
    """One tensor of an open file."""

    def __init__(self, file: File[T], name: str) -> None:
        self._file = file
        self._name = name

    def get_shape(self) -> list[int]:
        """Returns the shape of the whole tensor."""
        return list(self._file._found(self._name)[1])

    def get_dtype(self) -> str:
        """Returns the dtype's name in the file: "F32"."""
        return self._file._found(self._name)[0]

    def __getitem__(self, index: Index | tuple[Index, ...]) -> T:
        """Returns a part of the tensor. Takes integers, slices of step 1 and one `...`. Raises IndexError, ValueError
        (another step)."""
        return self._file._read(self._name, index if isinstance(index, tuple) else (index,))


def _box_of(
    index: tuple[Index, ...], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Returns offset and shape of the box that `index` requests, and the shape without the dimensions that integers
    remove."""
    if index.count(...) > 1:
        raise IndexError("an index has only one ellipsis")
    if ... in index:
        at = index.index(...)
        index = index[:at] + (slice(None),) * (len(shape) - len(index) + 1) + index[at + 1 :]
    if len(index) > len(shape):
        raise IndexError(f"{len(index)} indices for a tensor of {len(shape)} dimensions")
    offset, box, kept = [], [], []
    for size, wanted in zip(shape, index + (slice(None),) * (len(shape) - len(index)), strict=True):
        if isinstance(wanted, slice):
            start, stop, step = wanted.indices(size)
            if step != 1:
                raise ValueError(f"a slice of step {step}: only neighbouring elements can be read together")
            offset.append(start)
            box.append(max(stop - start, 0))
            kept.append(box[-1])
        else:
            place = operator.index(wanted)  # type: ignore[arg-type]  # the ellipsis is gone
            place += size if place < 0 else 0
            if not 0 <= place < size:
                raise IndexError(f"index {wanted} is out of bounds for a dimension of {size}")
            offset.append(place)
            box.append(1)
    return tuple(offset), tuple(box), tuple(kept)
