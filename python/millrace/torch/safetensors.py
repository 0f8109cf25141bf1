# SPDX-License-Identifier: Apache-2.0
"""Drop-ins for `safetensors.torch` (`save_file`, `load_file`) and `safetensors.safe_open`: the same calls and files, at
the speed of checkpoints, on paths and s3:// URLs. `millrace.safetensors` has the same functions for NumPy.

    mr.torch.safetensors.save_file(model.state_dict(), "model.safetensors", metadata={"format": "pt"})
    model.load_state_dict(mr.torch.safetensors.load_file("model.safetensors", device="cuda"))
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from millrace import _safetensors
from millrace._safetensors import Path, Slice

from .device import resolve_device
from .tensors import box_of, is_dense, new_value

__all__ = ["Slice", "load_file", "safe_open", "save_file"]


def save_file(
    tensors: Mapping[str, torch.Tensor],
    filename: Path,
    metadata: Mapping[str, str] | None = None,
    *,
    durable: bool = True,
) -> None:
    """Writes tensors to one file. The file appears when it is complete. With `durable` it survives a power cut.

    Raises TypeError (not a plain tensor, or a dtype that safetensors does not have), RuntimeError (two tensors share
    memory: the file would have it twice; the reference raises this too), ValueError (names, metadata), OSError.
    """
    dense = {name: _on_cpu(name, tensor) for name, tensor in tensors.items()}
    _refuse_shared(tensors)
    entries = [
        _safetensors.entry(name, box_of(value).dtype, value.shape, value.data_ptr()) for name, value in dense.items()
    ]
    _safetensors.write(filename, entries, metadata, durable)


def load_file(filename: Path, device: str | int | torch.device = "cpu") -> dict[str, torch.Tensor]:
    """Returns all tensors of a file. Raises FileNotFoundError, millrace.CorruptionError (the header), OSError."""
    with safe_open(filename, device=device) as file:
        return file.get_tensors(file.keys())


class safe_open(_safetensors.File[torch.Tensor]):
    """An open file: keys(), metadata(), get_tensor(), get_slice(), offset_keys()."""

    def __init__(self, filename: Path, framework: str = "pt", device: str | int | torch.device = "cpu") -> None:
        if framework not in ("pt", "torch", "pytorch"):
            raise ValueError(f"framework {framework!r}: this is PyTorch; for NumPy there is millrace.safetensors")
        target = resolve_device(device)
        super().__init__(
            filename,
            _safetensors.Framework[torch.Tensor](
                new=lambda dtype, shape: new_value(dtype, shape, array=False),  # type: ignore[return-value,arg-type]
                address=lambda tensor: tensor.data_ptr(),
                reshape=lambda tensor, shape: tensor.reshape(shape),
                give=lambda tensor: tensor.to(target),
            ),
        )

    def __enter__(self) -> safe_open:
        super().__enter__()
        return self


def _on_cpu(name: str, tensor: torch.Tensor) -> torch.Tensor:
    try:
        if box_of(tensor).global_shape != tuple(tensor.shape) or type(tensor).__name__ == "DTensor":
            raise TypeError("a DTensor; a Checkpointer saves sharded tensors")
    except (TypeError, NotImplementedError) as error:
        raise type(error)(f"{name}: {error} cannot be stored in a safetensors file") from None
    value = tensor.detach()
    return value if is_dense(value) else value.cpu().resolve_conj().resolve_neg().contiguous()


def _refuse_shared(tensors: Mapping[str, torch.Tensor]) -> None:
    by_storage: dict[tuple[torch.device, int], list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.numel() > 0:
            by_storage.setdefault((tensor.device, tensor.untyped_storage().data_ptr()), []).append(name)
    for names in by_storage.values():
        for first, second in _overlapping(sorted(names, key=lambda name: tensors[name].data_ptr()), tensors):
            raise RuntimeError(f"{first} and {second} share memory: save one of them, or a clone()")


def _overlapping(names: list[str], tensors: Mapping[str, torch.Tensor]) -> list[tuple[str, str]]:
    """Returns pairs of tensors that are neighbours in memory and overlap."""
    found = []
    end, last = -1, ""
    for name in names:
        tensor = tensors[name]
        if tensor.data_ptr() < end:
            found.append((last, name))
        span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        if tensor.data_ptr() + span * tensor.element_size() > end:
            end, last = tensor.data_ptr() + span * tensor.element_size(), name
    return found
