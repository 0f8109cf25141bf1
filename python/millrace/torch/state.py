# SPDX-License-Identifier: Apache-2.0
"""Encodes a training state as named tensors plus a small JSON tree, without pickle.

The name of a tensor or array is the dotted path to it ("model.layers.0.wq.weight", "optim.state.0.exp_avg"). All other
values form a tree. In this tree, JSON's own values mean themselves. Every other value is an object with one "$" key:

    None, bool, str                    null, true, "text"
    int                                42; beyond 64 bits {"$int": "170141183460469231731687303715884105728"}
    float                              0.1, the shortest text that reads back to the same bits; {"$float": "nan"}
    list                               [...]
    dict, keys sorted strings          {"lr": 0.1}: plain when every key is a string, none starts with "$", in order
    any other dict                     {"$dict": [[key, value], ...]}, so key types and order survive
    OrderedDict, Counter               {"$ordered": [[key, value], ...]}, {"$counter": [[key, value], ...]}
    tuple, bytes                       {"$tuple": [...]}, {"$bytes": base64}
    str with lone surrogates           {"$str": base64 of its UTF-8 with surrogates passed}
    NumPy scalar                       {"$scalar": ["float32", base64 of its little-endian bytes]}
    torch.dtype, torch.Size            {"$dtype": "bfloat16"}, {"$size": [2, 3]}
    tensor, array                      {"$tensor": name}, {"$array": name}; values that are the same memory share a name
    object with state_dict()           {"$object": class, "state": its state_dict()}
    PerRank(value)                     {"$per_rank": path}; the value's own tree is in the rank's state, by path

Types must match exactly: an instance of a subclass (a namedtuple, an IntEnum) is refused, because it would be restored
as another type.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .tensors import EVERY_RANK, Box, box_of, dense_identity, identity, is_value

Node = Any  # a JSON value
Path = tuple[Any, ...]  # dict keys, and Index for places in lists

_FORMAT = "millrace.torch"
_VERSION = 1
_MOST_LEVELS = 200  # the most levels of nested containers; Python's own limit of calls would be reached at about 300
_RANK_NAME = re.compile(r"rank\d+/")
_DICTS = {dict: "$dict", OrderedDict: "$ordered", Counter: "$counter"}


class Index(int):
    """A position in a list. In messages, it differs from a dict's integer key."""


class PerRank:
    """Marks a value that differs from rank to rank, such as the state of a random number generator.

    Each rank stores its own value, and gets back the value of the rank with the same number. The attribute `value` is
    the value, both before a save and after a restore.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"PerRank({self.value!r})"


@dataclass
class Encoded:
    """The data that one rank stores."""

    state: Node = None
    rank_state: list[list[Node]] = field(default_factory=list)  # [path, node] of each PerRank
    boxes: dict[str, Box] = field(default_factory=dict)  # the boxes by name; they keep the memory alive


def encode(state: dict[str, Any], rank: int) -> Encoded:
    """Encodes a state. Raises TypeError naming the path of a value that cannot be stored ("optim.param_groups[0].foo:
    <class>")."""
    return _Encoder(rank).run(state)


def dump(node: Node) -> str:
    """Returns the JSON document that is stored."""
    return json.dumps({"format": _FORMAT, "version": _VERSION, "state": node}, separators=(",", ":"))


def parse(text: str) -> Node:
    """Returns the node in a document of `dump`. Raises ValueError (not such a document), NotImplementedError (a newer
    version)."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError("the checkpoint's state was not written by millrace.torch")
    if document.get("version") != _VERSION:
        raise NotImplementedError(
            f"the checkpoint's state has version {document.get('version')}, newer than {_VERSION}"
        )
    return document.get("state")


def format_path(path: Path) -> str:
    """Formats a path: ("optim", "param_groups", Index(0), "lr") becomes "optim.param_groups[0].lr"."""
    text = "".join(f"[{int(key)}]" if isinstance(key, Index) else f".{key}" for key in path)
    return text.removeprefix(".")


def unwrap(value: Any) -> Any:
    """Returns the module inside DistributedDataParallel, DataParallel and torch.compile, whose wrappers prefix every
    name."""
    while True:
        if isinstance(value, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)):
            value = value.module
        elif isinstance(value, torch.nn.Module) and "_orig_mod" in value._modules:
            value = value._modules["_orig_mod"]
        else:
            return value


def is_stateful(value: object) -> bool:
    """Returns whether `value` is an object with state_dict() and load_state_dict()."""
    return (
        not isinstance(value, type)
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )


def tag_of(node: Node) -> str | None:
    """Returns "$tuple" for {"$tuple": ...}; None for a node that means itself."""
    if isinstance(node, dict):
        return next((key for key in node if key.startswith("$")), None)
    return None


def dict_items(node: Node) -> list[tuple[Node, Node]] | None:
    """Returns the key and value nodes of a dict of any kind, in order; None for any other node."""
    tag = tag_of(node)
    if isinstance(node, dict) and tag is None:
        return list(node.items())
    return [(key, value) for key, value in node[tag]] if tag in _DICTS.values() else None


def make_dict(node: Node, items: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Makes a dict of the kind that `node` represents."""
    kinds = {tag: kind for kind, tag in _DICTS.items()}
    return kinds[tag_of(node) or "$dict"](dict(items))


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "$int": int,
    "$float": float,
    "$bytes": lambda text: base64.b64decode(text),
    "$str": lambda text: base64.b64decode(text).decode("utf-8", "surrogatepass"),
    "$scalar": lambda pair: _numpy_scalar(*pair),
    "$dtype": lambda name: getattr(torch, name),
    "$size": torch.Size,
}


def decode_scalar(node: Node, path: Path) -> Any:
    """Returns the value of a node that contains no other node. Raises NotImplementedError for a tag that this version
    lacks."""
    tag = tag_of(node)
    if tag is None:
        return node
    if tag not in _SCALARS:
        raise NotImplementedError(f"{format_path(path)}: stored as {tag}, which this version does not know")
    return _SCALARS[tag](node[tag])


def decode(node: Node, path: Path = ()) -> Any:
    """Returns the value of a node of plain data: without tensors and objects. Raises NotImplementedError."""
    items = dict_items(node)
    if items is not None:
        pairs = [(decode(key, path), value) for key, value in items]
        return make_dict(node, [(key, decode(value, (*path, key))) for key, value in pairs])
    if isinstance(node, list) or tag_of(node) == "$tuple":
        nodes = node if isinstance(node, list) else node["$tuple"]
        values = [decode(item, (*path, Index(at))) for at, item in enumerate(nodes)]
        return values if isinstance(node, list) else tuple(values)
    return decode_scalar(node, path)


class _Encoder:
    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._prefix = ""  # the prefix of names; "rank3/" inside a PerRank
        self._in_object = False  # a state_dict() has plain data only: an object inside it could not be found again
        self._around: set[int] = set()  # ids of the containers around the value
        self._out = Encoded()
        self._names: dict[Any, str] = {}  # the names by identity of the memory

    def run(self, state: dict[str, Any]) -> Encoded:
        if type(state) is not dict or not all(type(key) is str for key in state):
            raise TypeError("the state is a dict with strings as keys")
        self._out.state = self._node(state, ())
        return self._out

    def _node(self, value: Any, path: Path) -> Node:
        kind = type(value)
        if kind is torch.Tensor:  # most values are
            return self._value(value, path)
        plain = _PLAIN.get(kind)
        if plain is not None:
            return plain(value)
        if kind in _DICTS or kind is list or kind is tuple:
            return self._container(value, path)
        if is_value(value):
            return self._value(value, path)
        if isinstance(value, np.generic) and value.dtype.itemsize <= _NUMPY_MAX.get(value.dtype.kind, 0):
            return {"$scalar": [value.dtype.name, _base64(value.astype(value.dtype.newbyteorder("<")).tobytes())]}
        if not self._in_object:
            if isinstance(value, PerRank):
                return self._per_rank(value, path)
            if is_stateful(value):
                return self._object(unwrap(value), path)
        raise TypeError(f"{format_path(path)}: {type(value)} cannot be stored in a checkpoint")

    def _container(self, value: Any, path: Path) -> Node:
        if id(value) in self._around:
            raise TypeError(f"{format_path(path)}: {type(value)} that contains itself cannot be stored in a checkpoint")
        if len(path) > _MOST_LEVELS:
            raise TypeError(f"{format_path(path[:9])}...: more than {_MOST_LEVELS} levels of containers")
        self._around.add(id(value))
        if type(value) in _DICTS:
            node = self._dict(value, path)
        else:
            nodes = [self._node(item, (*path, Index(at))) for at, item in enumerate(value)]
            node = nodes if type(value) is list else {"$tuple": nodes}
        self._around.discard(id(value))
        return node

    def _dict(self, value: dict[Any, Any], path: Path) -> Node:
        nodes = [(key, self._node(item, (*path, key))) for key, item in value.items()]
        keys = list(value)
        if type(value) is dict and all(map(_is_plain_key, keys)) and keys == sorted(keys):
            return dict(nodes)
        return {_DICTS[type(value)]: [[self._key(key, path), node] for key, node in nodes]}

    def _key(self, key: Any, path: Path) -> Node:
        if type(key) is str:
            return _str(key)
        if is_value(key) or is_stateful(key) or isinstance(key, PerRank):
            raise TypeError(f"{format_path(path)}: {type(key)} as a key cannot be stored in a checkpoint")
        return self._node(key, (*path, key))

    def _value(self, value: Any, path: Path) -> Node:
        tag = "$array" if isinstance(value, np.ndarray) else "$tensor"
        try:
            box = box_of(value)
        except (TypeError, NotImplementedError) as error:
            raise type(error)(f"{format_path(path)}: {error} cannot be stored in a checkpoint") from None
        same = (self._prefix, *(dense_identity(box) if box.dense else identity(value)))
        if same in self._names:
            return {tag: self._names[same]}
        if self._prefix and box.holders is not EVERY_RANK:
            raise TypeError(f"{format_path(path)}: a DTensor inside PerRank; store its to_local()")
        name = ".".join(map(str, path))
        if self._prefix:
            name = self._prefix + name
        elif name.startswith("rank") and _RANK_NAME.match(name):
            raise ValueError(f"{name}: names that start with rank<number>/ belong to PerRank")
        while name in self._out.boxes:  # {"a.b": t, "a": {"b": u}}
            name += "~"
        self._out.boxes[name] = box
        if box.nbytes > 0:
            self._names[same] = name
        return {tag: name}

    def _object(self, value: Any, path: Path) -> Node:
        self._in_object = True
        node = self._node(value.state_dict(), path)
        self._in_object = False
        return {"$object": type(value).__qualname__, "state": node}

    def _per_rank(self, value: PerRank, path: Path) -> Node:
        if self._prefix:
            raise TypeError(f"{format_path(path)}: a PerRank inside a PerRank")
        self._prefix = f"rank{self._rank}/"
        key = format_path(path)
        while any(key == known for known, _ in self._out.rank_state):
            key += "~"
        self._out.rank_state.append([key, self._node(value.value, path)])
        self._prefix = ""
        return {"$per_rank": key}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _numpy_scalar(dtype: str, data: str) -> np.generic:
    stored = np.frombuffer(base64.b64decode(data), np.dtype(dtype).newbyteorder("<"))
    return stored.astype(dtype)[0]


def _is_plain_key(key: object) -> bool:
    return type(key) is str and not key.startswith("$") and _is_unicode(key)


def _is_unicode(text: str) -> bool:
    # A lone surrogate is legal only in Python: JSON readers need not accept it.
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def _int(value: int) -> Node:
    return value if -(2**63) <= value < 2**63 else {"$int": str(value)}


def _float(value: float) -> Node:
    return value if math.isfinite(value) else {"$float": repr(value)}


def _str(value: str) -> Node:
    return value if _is_unicode(value) else {"$str": _base64(value.encode("utf-8", "surrogatepass"))}


_NUMPY_MAX = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}  # bytes; wider ones differ between processors
_PLAIN: dict[type, Callable[[Any], Node]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    int: _int,
    float: _float,
    str: _str,
    bytes: lambda value: {"$bytes": _base64(value)},
    torch.dtype: lambda value: {"$dtype": str(value).removeprefix("torch.")},
    torch.Size: lambda value: {"$size": list(value)},
}
