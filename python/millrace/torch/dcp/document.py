# SPDX-License-Identifier: Apache-2.0
"""The data of a torch.distributed.checkpoint checkpoint other than tensors, as the JSON `state` of a manifest:

format, version   "millrace.torch.dcp", 1
bytes             names whose tensor (U8, one dimension) has the bytes from the planner: an object of torch.save
pieces            name -> {dtype, shape, chunks: [[offset, shape, stored name], ...]}, for each tensor of which one
                  rank has several chunks. A rank's file has one box per name, so each chunk is stored as a tensor with
                  its own name
planner_data      data of the planner, in the tagged JSON of millrace.torch.state
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from .. import state as tree

_FORMAT = "millrace.torch.dcp"
_VERSION = 1

Shape = tuple[int, ...]


@dataclass
class Pieces:
    """A tensor that is stored as one tensor per chunk."""

    dtype: str  # safetensors name
    shape: Shape
    chunks: list[tuple[Shape, Shape, str]] = field(default_factory=list)  # offset, shape, stored name


@dataclass
class Document:
    bytes: list[str] = field(default_factory=list)
    pieces: dict[str, Pieces] = field(default_factory=dict)
    planner_data: Any = None


def dump(document: Document) -> str:
    """Returns the JSON text of a document. Raises TypeError if the planner's data is not plain data."""
    planner_data = tree.encode({"planner_data": document.planner_data}, 0)
    if planner_data.boxes:
        raise TypeError(f"planner_data holds tensors ({next(iter(planner_data.boxes))}): it must be plain data")
    return json.dumps(
        {
            "format": _FORMAT,
            "version": _VERSION,
            "bytes": document.bytes,
            "pieces": {name: asdict(pieces) for name, pieces in document.pieces.items()},
            "planner_data": planner_data.state["planner_data"],
        },
        separators=(",", ":"),
    )


def parse(text: str) -> Document:
    """Returns the document in a JSON text. For a checkpoint that another program wrote, returns an empty document: only
    the tensors are known then. Raises NotImplementedError (a newer version)."""
    found = json.loads(text)
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        return Document()
    if found.get("version") != _VERSION:
        raise NotImplementedError(f"the checkpoint's DCP document has version {found.get('version')}, not {_VERSION}")
    pieces = {
        name: Pieces(
            one["dtype"], tuple(one["shape"]), [(tuple(o), tuple(s), stored) for o, s, stored in one["chunks"]]
        )
        for name, one in found["pieces"].items()
    }
    return Document(found["bytes"], pieces, tree.decode(found["planner_data"]))
