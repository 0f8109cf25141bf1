# SPDX-License-Identifier: Apache-2.0
"""Converts checkpoints to and from the formats that only torch reads. `millrace ckpt export --format dcp` and
`millrace ckpt import --from dcp|torch` run this module. It prints one JSON object.

    python -m millrace.torch.convert export ROOT STEP OUT
    python -m millrace.torch.convert import dcp|torch SOURCE ROOT STEP PART_BYTES

Restricted unpicklers read the pickles: that of torch.load(weights_only=True) and, for DCP's `.metadata`, one that knows
only DCP's own classes.
"""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex

from millrace import _core

from . import state as tree
from .dcp.document import Document, dump
from .dcp.reader import load_tensor, read_document
from .tensors import Box, address, box_of, dtype_name

# The classes that a .metadata of DCP may name.
_METADATA_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
        "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"} | {str(value)[6:] for value in vars(torch).values() if isinstance(value, torch.dtype)},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
}  # fmt: skip


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in _METADATA_CLASSES.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint of DCP needs")
        return super().find_class(module, name)


def read_metadata(folder: Path) -> Metadata:
    """Reads the metadata of a DCP checkpoint. Raises FileNotFoundError, ValueError (damage, or a class that does not
    belong there)."""
    path = folder / ".metadata"
    try:
        with path.open("rb") as file:
            metadata = _MetadataUnpickler(file).load()
    except OSError:
        raise
    except Exception as error:  # a damaged pickle may raise any exception
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
        raise ValueError(f"{path}: it holds no metadata of a checkpoint")
    return metadata


class _Parts:
    """Boxes that are saved into one step, in parts of bounded size. Part 0 is saved last, and commits the step."""

    def __init__(self, root: str, step: int, part_bytes: int) -> None:
        if step in (info["step"] for info in _core.list_steps(root)):
            raise FileExistsError(f"{root}: it has a step {step} already")
        self._root, self._step, self._part_bytes = root, step, part_bytes
        self._attempt = _core.make_attempt(root, newer=False)

    def save(self, loads: list[tuple[str, int, Any]], state: str) -> dict[str, int]:
        """Saves the boxes. loads: (name, bytes, a function that returns the Box) of each box. A part has at most one
        box of a name."""
        parts: list[list[tuple[str, Any]]] = [[]]
        sizes = [0]
        for name, size, load in loads:
            if parts[-1] and (sizes[-1] + size > self._part_bytes or any(name == known for known, _ in parts[-1])):
                parts.append([])
                sizes.append(0)
            parts[-1].append((name, load))
            sizes[-1] += size
        for rank in reversed(range(len(parts))):
            saver = _core.Saver(self._root, attempt=self._attempt, rank=rank, world_size=len(parts))
            boxes = [(name, load()) for name, load in parts[rank]]
            entries = [
                (name, box.dtype, box.global_shape, box.offset, box.shape, address(box.local)) for name, box in boxes
            ]
            saver.save_part(self._step, entries).wait()
            if rank == 0:
                saver.commit(self._step, state)
            saver.close()
        return {"tensors": len({name for name, *_ in loads}), "bytes": sum(sizes), "parts": len(parts)}


def import_dcp(source: str, root: str, step: int, part_bytes: int) -> dict[str, int]:
    """Imports a checkpoint of DCP's FileSystemWriter, with everything that is in it. StorageReader loads the result."""
    folder = Path(source)
    metadata = read_metadata(folder)
    document = Document(planner_data=metadata.planner_data)
    loads: list[tuple[str, int, Any]] = []
    lanes: list[int] = []  # chunks with the same number are together, for all tensors: mostly those of one rank
    for name, stored in metadata.state_dict_metadata.items():
        lanes.extend(range(1 if isinstance(stored, BytesStorageMetadata) else len(stored.chunks)))
        if isinstance(stored, BytesStorageMetadata):
            info = _place(metadata, MetadataIndex(name), folder)
            document.bytes.append(name)
            loads.append((name, info.length, lambda info=info: _bytes_box(_read(folder, info))))
            continue
        element = stored.properties.dtype.itemsize
        for chunk in stored.chunks:
            info = _place(metadata, MetadataIndex(name, chunk.offsets), folder)
            size = element * math.prod(chunk.sizes)
            loads.append(
                (name, size, lambda info=info, stored=stored, chunk=chunk, name=name: _chunk_box(
                    folder, info, stored, chunk, name))
            )  # fmt: skip
    ordered = [loads[at] for at in sorted(range(len(loads)), key=lanes.__getitem__)]
    return _Parts(root, step, part_bytes).save(ordered, dump(document))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _has_tensors(values: dict[Any, Any]) -> bool:
    return any(isinstance(value, torch.Tensor) for value in values.values())


def import_torch(source: str, root: str, step: int, part_bytes: int) -> dict[str, int]:
    """Imports a file of torch.save. A state dict becomes the entry "model". If a dict contains state dicts, each value
    becomes an entry with the same name. Raises ValueError if the file is damaged or contains other Python objects."""
    try:
        loaded = torch.load(source, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(source))
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        why = f"it holds objects of {refused[1]}; save their state dicts instead" if refused else _first_line(error)
        raise ValueError(f"{source}: {why}") from None
    except (RuntimeError, EOFError) as error:
        raise ValueError(f"{source}: it is damaged or cut off: {_first_line(error)}") from None
    if not isinstance(loaded, dict):
        raise ValueError(f"{source}: it holds {type(loaded).__name__}, not a state dict")
    loaded = dict(loaded)
    has_state_dicts = any(isinstance(value, dict) and _has_tensors(value) for value in loaded.values())
    if _has_tensors(loaded) and not has_state_dicts:
        loaded = {"model": loaded}
    encoded = tree.encode(loaded, 0)
    items = dict(tree.dict_items(encoded.state) or [])
    # An entry with tensors was a module's or optimizer's state_dict(), and is restored into one.
    has_tensors = {name.split(".", 1)[0] for name in encoded.boxes}
    state = {
        key: {"$object": "imported", "state": node}
        if key in has_tensors and tree.dict_items(node) is not None
        else node
        for key, node in items.items()
    }
    loads = [(name, box.nbytes, lambda box=box: _dense(box)) for name, box in encoded.boxes.items()]
    return _Parts(root, step, part_bytes).save(
        loads, tree.dump({"$dict": [[key, node] for key, node in state.items()]})
    )


def export_dcp(root: str, step: int, out: str) -> dict[str, int]:
    """Writes files for DCP's FileSystemReader: each item in the form that torch.save writes, `.metadata` last."""
    checkpoint = _core.Checkpoint(root, step)
    metadata, names = read_document(checkpoint)
    folder = Path(out)
    if (folder / ".metadata").exists():
        raise FileExistsError(f"{folder}: there is a checkpoint already")
    folder.mkdir(parents=True, exist_ok=True)
    storage: dict[MetadataIndex, _StorageInfo] = {}
    data = "__0_0.distcp"
    with (folder / data).open("wb") as file:
        for index, load in _items(checkpoint, metadata, names):
            begin = file.tell()
            file.write(load().getbuffer())
            storage[index] = _StorageInfo(data, begin, file.tell() - begin)
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    metadata.storage_data = storage
    metadata.version = "1.0.0"
    temporary = folder / ".metadata.tmp"
    with temporary.open("wb") as file:
        pickle.dump(metadata, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(folder / ".metadata")
    return {"tensors": len(metadata.state_dict_metadata), "bytes": size}


def _items(
    checkpoint: _core.Checkpoint, metadata: Metadata, names: dict[MetadataIndex, str]
) -> Iterator[tuple[MetadataIndex, Any]]:
    for name, stored in metadata.state_dict_metadata.items():
        if isinstance(stored, BytesStorageMetadata):
            yield MetadataIndex(name), lambda name=name: io.BytesIO(load_tensor(checkpoint, name).numpy().tobytes())
            continue
        for at, chunk in enumerate(stored.chunks):
            index = MetadataIndex(name, chunk.offsets, at)
            piece = names.get(index)
            offset = (0,) * len(chunk.sizes) if piece is not None else tuple(chunk.offsets)
            yield (
                index,
                lambda name=piece or name, offset=offset, chunk=chunk: _saved(
                    load_tensor(checkpoint, name, offset, tuple(chunk.sizes))
                ),
            )


def _saved(tensor: torch.Tensor) -> io.BytesIO:
    content = io.BytesIO()
    torch.save(tensor, content)
    return content


def _place(metadata: Metadata, index: MetadataIndex, folder: Path) -> _StorageInfo:
    info = metadata.storage_data.get(index)
    if not isinstance(info, _StorageInfo):
        raise ValueError(f"{folder}: its metadata has no place for '{index.fqn}' at {index.offset}")
    if getattr(info, "transform_descriptors", None):
        raise NotImplementedError(f"{folder}: '{index.fqn}' went through {info.transform_descriptors}")
    if Path(info.relative_path).name != str(info.relative_path):
        raise ValueError(f"{folder}: '{index.fqn}' lies in '{info.relative_path}', outside of the folder")
    return info


def _read(folder: Path, info: _StorageInfo) -> bytes:
    path = folder / info.relative_path
    with path.open("rb") as file:
        file.seek(info.offset)
        content = file.read(info.length)
    if len(content) != info.length:
        raise ValueError(f"{path}: it ends at {info.offset + len(content)}, inside of an item of {info.length} bytes")
    return content


def _bytes_box(content: bytes) -> Box:
    array = np.frombuffer(content, np.uint8)
    return Box(array, "U8", array.shape, dense=True)


def _chunk_box(folder: Path, info: _StorageInfo, stored: Any, chunk: Any, name: str) -> Box:
    try:
        value = torch.load(io.BytesIO(_read(folder, info)), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(f"{folder / info.relative_path}: '{name}': {str(error).splitlines()[0]}") from None
    if tuple(value.shape) != tuple(chunk.sizes) or value.dtype != stored.properties.dtype:
        raise ValueError(f"{folder}: '{name}' is {list(value.shape)} of {value.dtype}, not what the metadata says")
    return Box(
        value.contiguous(),
        dtype_name(value.dtype),
        tuple(chunk.sizes),
        dense=True,
        global_shape=tuple(stored.size),
        offset=tuple(chunk.offsets),
    )


def _dense(box: Box) -> Box:
    local = box.local
    return (
        box if box.dense or isinstance(local, np.ndarray) else box_of(local.resolve_conj().resolve_neg().contiguous())
    )


def main(arguments: Iterable[str]) -> int:
    """Prints one JSON object: the counts, or the error."""
    verb, *rest = arguments
    try:
        if verb == "export":
            root, step, out = rest
            answer: dict[str, Any] = {**export_dcp(root, int(step), out)}
        else:
            kind, source, root, step, part_bytes = rest
            convert = import_dcp if kind == "dcp" else import_torch
            answer = {**convert(source, root, int(step), int(part_bytes))}
    except (OSError, ValueError, TypeError, NotImplementedError, MemoryError) as error:
        answer = {"error": str(error), "kind": type(error).__name__}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
