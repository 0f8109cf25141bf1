# SPDX-License-Identifier: Apache-2.0
"""Drop-ins for `safetensors.numpy`: the same calls and files, at the speed of checkpoints, on paths and s3:// URLs.

    mr.safetensors.save_file({"w": array}, "s3://bucket/model.safetensors")
    arrays = mr.safetensors.load_file("model.safetensors")
    with mr.safetensors.safe_open("model.safetensors") as f:
        rows = f.get_slice("w")[:4]

bfloat16 and float8 are arrays of the package ml_dtypes, which no other dtype needs. `millrace.torch.safetensors` has
the same functions for tensors.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from millrace import _safetensors
from millrace._safetensors import Path, Slice

__all__ = ["Slice", "load_file", "safe_open", "save_file"]

_PLAIN = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32",
    "I64": "int64", "U64": "uint64", "F16": "float16", "F32": "float32", "F64": "float64", "C64": "complex64",
}  # fmt: skip
_EXTRA = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
_NAMES = {numpy: name for name, numpy in {**_PLAIN, **_EXTRA}.items()}


def save_file(
    tensor_dict: Mapping[str, np.ndarray],
    filename: Path,
    metadata: Mapping[str, str] | None = None,
    *,
    durable: bool = True,
) -> None:
    """Writes arrays to one file. The file appears when it is complete. With `durable` it survives a power cut.

    Raises TypeError (a dtype that safetensors does not have), ValueError (names, metadata), OSError.
    """
    arrays = {name: _native(array) for name, array in tensor_dict.items()}
    entries = [
        _safetensors.entry(name, _dtype_name(name, array), array.shape, array.ctypes.data)
        for name, array in arrays.items()
    ]
    _safetensors.write(filename, entries, metadata, durable)


def load_file(filename: Path) -> dict[str, np.ndarray]:
    """Returns all arrays of a file. Raises FileNotFoundError, millrace.CorruptionError (the header),
    ModuleNotFoundError (the file has bfloat16 or float8, and ml_dtypes is missing), OSError."""
    with safe_open(filename) as file:
        return file.get_tensors(file.keys())


class safe_open(_safetensors.File[np.ndarray]):
    """An open file: keys(), metadata(), get_tensor(), get_slice(), offset_keys()."""

    def __init__(self, filename: Path, framework: str = "np", device: str = "cpu") -> None:
        if framework not in ("np", "numpy") or device != "cpu":
            raise ValueError(f"framework {framework!r} on {device!r}: this is NumPy on the CPU; for tensors there is "
                             "millrace.torch.safetensors")  # fmt: skip
        super().__init__(filename, _FRAMEWORK)

    def __enter__(self) -> safe_open:
        super().__enter__()
        return self


def _native(array: np.ndarray) -> np.ndarray:
    native = array.dtype.newbyteorder("=") if array.dtype.byteorder not in "=|" else array.dtype
    return np.require(array, native, "C")


def _dtype_name(name: str, array: np.ndarray) -> str:
    if array.dtype.name not in _NAMES:
        raise TypeError(f"{name}: safetensors has no dtype for {array.dtype}")
    return _NAMES[array.dtype.name]


def _numpy_dtype(dtype: str) -> np.dtype[Any]:
    if dtype in _PLAIN:
        return np.dtype(_PLAIN[dtype])
    if dtype not in _EXTRA:
        raise NotImplementedError(f"NumPy has no dtype for {dtype}")
    try:
        extra = importlib.import_module("ml_dtypes")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"arrays of {dtype} need ml_dtypes: pip install ml_dtypes", name="ml_dtypes"
        ) from None
    return np.dtype(getattr(extra, _EXTRA[dtype]))


_FRAMEWORK = _safetensors.Framework[np.ndarray](
    new=lambda dtype, shape: np.empty(shape, _numpy_dtype(dtype)),
    address=lambda array: int(array.ctypes.data),
    reshape=lambda array, shape: array.reshape(shape),
    give=lambda array: array,
)
