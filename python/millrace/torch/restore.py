# SPDX-License-Identifier: Apache-2.0
"""Restores a checkpoint into a live training state, in three phases. `plan` checks names and shapes, and finds or
allocates memory for every tensor. `load` fills this memory; it detects a damaged file, before any object has changed.
`finish` gives the objects their state. Before `finish`, only the memory of tensors is written."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Iterator
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from . import device_load
from . import state as tree
from .device_image import ImageCopies
from .device_load import DeviceTarget
from .named_optimizer import NamedOptimizer
from .share import Target
from .state import Index, Node, Path, PerRank, format_path
from .tensors import (
    Box,
    Value,
    address,
    box_of,
    dense_identity,
    identity,
    is_value,
    is_writable,
    misfit_text,
    misfits,
    new_like,
    new_value,
    storage_address,
)

_ABSENT = object()
_EXTRA_STATE = "_extra_state"  # the last part of the name under which Module.state_dict() stores get_extra_state()


class _RoomLike:
    """Represents the state that an optimizer will keep for a parameter after its first step."""

    def __init__(self, parameter: torch.Tensor) -> None:
        self.parameter = parameter


class Restorer:
    """Restores one checkpoint into one state, once."""

    def __init__(self, checkpoint: Any, rank: int, strict: bool, copies: ImageCopies | None = None) -> None:
        """Prepares a restore. copies: copies for tensors on devices, which load_devices() then loads; None: these
        tensors are loaded through host memory, at the end."""
        self._copies = copies
        self._checkpoint = checkpoint
        self._rank = rank
        self._strict = strict
        self._stored: dict[str, tuple[str, tuple[int, ...]]] = checkpoint.tensors
        self._rank_nodes: dict[str, Node] | None = None
        self.targets: list[Target] = []  # after plan(): the boxes to read
        self._device_targets: list[DeviceTarget] = []
        self._rooms: dict[int, str] = {}  # storage address -> the name that is loaded straight into it
        self._filled: dict[tuple[Any, ...], tuple[str, Path]] = {}  # by identity: the source of tied tensors
        self._alive: list[Value] = []  # keeps the memory, so that no address is used twice
        self._finish: list[Callable[[], object]] = []
        self._problems: list[str] = []
        self._matched = 0  # values of `state` that the checkpoint has
        self._misfits: list[str] = []  # tensors with values that do not fit the narrower dtype here
        self._patterns: dict[Any, list[str]] = {}  # the patterns of entries from which only some names are requested

    def plan(self, state: dict[str, Any], only: Collection[str] | None = None) -> None:
        """Plans the restore. Raises ValueError listing every missing and unexpected name and every shape that differs.
        Without strict, warns of each entry of `state` of which nothing is restored. only: the entries to restore, or
        patterns of names in them."""
        items = dict(tree.dict_items(tree.parse(self._checkpoint.state)) or [])
        wanted = state
        if only is not None:
            asked = self._asked(state, only)
            items = {key: node for key, node in items.items() if key in asked}
            wanted = {key: value for key, value in state.items() if key in asked}
        self._rank_nodes = self._read_rank_nodes(wanted)
        self._plan(items, wanted, state)
        if self._problems:
            shown = "\n  ".join(sorted(self._problems)[:20])
            more = f"\n  and {len(self._problems) - 20} more" if len(self._problems) > 20 else ""
            raise ValueError(f"step {self._checkpoint.step} does not fit the state to restore:\n  {shown}{more}")

    def _asked(self, state: dict[str, Any], only: Collection[str]) -> set[Any]:
        """Returns the entries that `only` names. Raises ValueError for an entry that `state` lacks."""
        asked = set()
        whole = set()
        for name in only:
            key = next((key for key in state if name == key or str(name).startswith(f"{key}.")), None)
            if key is None:
                raise ValueError(f"only: the state to restore has no '{name}'; it has {', '.join(map(str, state))}")
            asked.add(key)
            if name == key:
                whole.add(key)
                continue
            live = tree.unwrap(state[key])
            if not isinstance(live, (torch.nn.Module, dict)):
                raise ValueError(f"only: '{name}': names are chosen in modules and dicts; '{key}' is restored whole")
            self._patterns.setdefault(key, []).append(name[len(str(key)) + 1 :])
        for key in whole:
            self._patterns.pop(key, None)
        return asked

    def _chosen(self, path: Path, names: Collection[Any]) -> set[Any] | None:
        """Returns the requested names of an entry; None: all. Raises ValueError for a pattern that matches no name."""
        patterns = self._patterns.get(path[0]) if len(path) == 1 else None
        if patterns is None:
            return None
        found: set[Any] = set()
        for pattern in patterns:
            fits = {name for name in names if fnmatchcase(str(name), pattern) or str(name).startswith(f"{pattern}.")}
            if not fits:
                raise ValueError(f"only: no name in '{path[0]}' fits '{path[0]}.{pattern}'")
            found |= fits
        return found

    def _plan(self, items: dict[Any, Node], wanted: dict[str, Any], state: dict[str, Any]) -> None:
        for key in items.keys() - wanted.keys():
            self._problem(f"unexpected: {key}")
        for key, live in wanted.items():
            before = self._matched
            if key not in items:
                self._problem(f"missing: {key}")
            else:
                self._put(state, key, self._value(items[key], live, (key,), True))
            if self._matched == before and not self._strict:
                self._say_nothing_fits(key, list(items))

    def _say_nothing_fits(self, key: str, stored: list[str]) -> None:
        has = (
            f"of '{key}' no name fits"
            if key in stored
            else f"it has {', '.join(sorted(map(str, stored))) or 'nothing'}"
        )
        message = f"strict=False: nothing of '{key}' is restored from step {self._checkpoint.step}: {has}"
        warnings.warn(message, RuntimeWarning, stacklevel=8)

    def load(self, targets: list[Target], threads: int) -> None:
        """Reads and verifies all bytes of `targets`."""
        self._checkpoint.load([target[:4] for target in targets], threads=threads)

    def load_devices(self, threads: int) -> None:
        """Reads and verifies all bytes of the targets on devices."""
        if self._copies is not None:
            device_load.load(
                self._device_targets, self._copies, lambda entries: self._checkpoint.load(entries, threads=threads)
            )

    def finish(self) -> None:
        """Gives every object its state. Errors that load_state_dict() of an object raises are passed on."""
        for step in self._finish:
            step()
        if self._misfits:
            warnings.warn(misfit_text(self._checkpoint.step, self._misfits), RuntimeWarning, stacklevel=5)

    def _problem(self, text: str) -> None:
        # Without strict, values without a counterpart are left alone. Values that cannot be copied are always
        # refused.
        if self._strict or not text.startswith(("missing", "unexpected")):
            self._problems.append(text)

    def _put(self, container: Any, key: Any, value: Any) -> None:
        self._finish.append(lambda: container.__setitem__(key, value))

    def _read_rank_nodes(self, state: dict[str, Any]) -> dict[str, Node] | None:
        text = self._checkpoint.rank_state(self._rank)
        if text is not None:
            return {} if json.loads(text) is None else dict(tree.dict_items(tree.parse(text)) or [])
        if any(isinstance(leaf, PerRank) for leaf in _leaves(state)):
            message = f"the checkpoint has no rank {self._rank}: its PerRank values stay as they are"
            warnings.warn(message, RuntimeWarning, stacklevel=7)
        return None

    def _value(self, node: Node, live: Any, path: Path, in_place: bool) -> Any:
        """Returns the value that replaces `live`: `live` itself, updated at the end, wherever possible."""
        tag = tree.tag_of(node)
        if isinstance(live, PerRank) or tag == "$per_rank":
            return self._per_rank(node, live, path)
        if tag == "$object" or tree.is_stateful(live):
            return self._object(node, live, path)
        if tag in ("$tensor", "$array"):
            return self._tensor(node[tag], live, path, array=tag == "$array")
        items = tree.dict_items(node)
        if items is not None:
            return self._dict(node, items, live, path, in_place)
        if isinstance(node, list) or tag == "$tuple":
            return self._sequence(node if tag is None else node[tag], live, path, tag is None, in_place)
        self._matched += 1
        return tree.decode_scalar(node, path)

    def _per_rank(self, node: Node, live: Any, path: Path) -> Any:
        if not isinstance(live, PerRank) or tree.tag_of(node) != "$per_rank":
            self._problem(
                f"differs: {format_path(path)} is PerRank only {'here' if isinstance(live, PerRank) else 'as stored'}"
            )
            return live
        if self._rank_nodes is None:
            return live
        key = node["$per_rank"]
        if key not in self._rank_nodes:
            self._problem(f"missing: {format_path(path)} of rank {self._rank}")
            return live
        value = self._value(self._rank_nodes[key], live.value, path, True)
        self._finish.append(lambda: setattr(live, "value", value))
        return live

    def _object(self, node: Node, live: Any, path: Path) -> Any:
        if live is _ABSENT:
            self._problem(f"unexpected: {format_path(path)}")
            return _ABSENT
        if tree.tag_of(node) != "$object" or not tree.is_stateful(live):
            self._problem(f"differs: {format_path(path)} is stored as another kind of value than {type(live)}")
            return live
        target = tree.unwrap(live)
        if isinstance(target, torch.nn.Module):
            self._module(node["state"], target, path)
            return live
        # Only an optimizer's own tensors are loaded in place: other objects may keep tensors whose shape changes.
        rooms: Any = _ABSENT
        if isinstance(target, torch.optim.Optimizer):
            rooms = _optimizer_rooms(target)
        elif isinstance(target, NamedOptimizer):
            rooms = target.with_names(_optimizer_rooms(target.optimizer))
        value = self._value(node["state"], rooms, path, False)
        self._matched += 1
        self._finish.append(lambda: target.load_state_dict(value))
        return live

    def _module(self, node: Node, module: torch.nn.Module, path: Path) -> None:
        stored = dict(tree.dict_items(node) or [])
        values = module.state_dict()
        self._matched += not stored and not values
        chosen = self._chosen(path, stored.keys() | values.keys())
        if chosen is not None:
            stored = {key: value for key, value in stored.items() if key in chosen}
            values = {key: value for key, value in values.items() if key in chosen}
        for key in stored.keys() - values.keys():
            self._problem(f"unexpected: {format_path((*path, key))}")
        for key, live in values.items():
            if key not in stored:
                self._problem(f"missing: {format_path((*path, key))}")
            else:
                # As in torch's load_state_dict: an extra state is passed on as it was saved, whatever the module has
                # now (the scaling history of fp8 grows), and a lazy module makes its parameters from the loaded
                # tensors.
                is_new = key.rpartition(".")[2] == _EXTRA_STATE or is_lazy(live)
                values[key] = self._value(stored[key], _ABSENT if is_new else live, (*path, key), False)
        is_strict = self._strict and chosen is None
        self._finish.append(lambda: module.load_state_dict(values, strict=is_strict))

    def _dict(self, node: Node, items: list[tuple[Node, Node]], live: Any, path: Path, in_place: bool) -> Any:
        known = live if isinstance(live, dict) else {}
        names = {self._dict_key(key_node, path): value_node for key_node, value_node in items}
        chosen = self._chosen(path, names.keys() | known.keys())
        self._matched += not items
        values: dict[Any, Any] = tree.make_dict(node, [])
        for key, value_node in names.items():
            if chosen is not None and key not in chosen:
                continue
            below = live if isinstance(live, _RoomLike) else known.get(key, _ABSENT)
            value = self._value(value_node, below, (*path, key), in_place)
            if value is not _ABSENT:
                values[key] = value
        for key in known.keys() - values.keys():
            # Plain data that the checkpoint lacks is removed; objects and tensors must have been stored.
            if chosen is not None and key not in chosen:
                values[key] = known[key]
            elif in_place and any(_is_live(leaf) for leaf in _leaves(known[key])):
                self._problem(f"missing: {format_path((*path, key))}")
                values[key] = known[key]
        if in_place and type(live) is type(values):
            self._finish.append(lambda: _refill(live, values))
            return live
        return values

    def _dict_key(self, node: Node, path: Path) -> Any:
        return self._key(node, path) if tree.tag_of(node) == "$tuple" else tree.decode_scalar(node, path)

    def _key(self, node: Node, path: Path) -> Any:
        if tree.tag_of(node) == "$tuple":
            return tuple(self._key(item, path) for item in node["$tuple"])
        return tree.decode_scalar(node, path)

    def _sequence(self, nodes: list[Node], live: Any, path: Path, is_list: bool, in_place: bool) -> Any:
        known = live if isinstance(live, (list, tuple)) else ()
        self._matched += not nodes
        values = [
            self._value(node, known[at] if at < len(known) else _ABSENT, (*path, Index(at)), in_place)
            for at, node in enumerate(nodes)
        ]
        for at in range(len(nodes), len(known)):
            if in_place and any(_is_live(leaf) for leaf in _leaves(known[at])):
                self._problem(f"missing: {format_path((*path, Index(at)))}")
        if not is_list:
            return tuple(values)
        if in_place and type(live) is list:
            self._finish.append(lambda: live.__setitem__(slice(None), values))
            return live
        return values

    def _tensor(self, name: str, live: Any, path: Path, *, array: bool) -> Any:
        if name not in self._stored:
            raise ValueError(f"{format_path(path)}: the checkpoint has no tensor {name}")
        dtype, shape = self._stored[name]
        if isinstance(live, _RoomLike):
            live = new_like(live.parameter, dtype, tuple(shape))
        if not is_value(live) or isinstance(live, np.ndarray) != array:
            live = new_value(dtype, tuple(shape), array=array)
        try:
            box = box_of(live)
        except (TypeError, NotImplementedError) as error:
            raise type(error)(f"{format_path(path)}: {error} cannot be restored into") from None
        if box.global_shape != tuple(shape):
            self._problem(
                f"differs: {format_path(path)} has shape {list(shape)} as stored and {list(box.global_shape)} here"
            )
            return live
        self._matched += 1
        if box.nbytes == 0:
            return live
        same = dense_identity(box) if box.dense else identity(live)
        first = self._filled.setdefault(same, (name, path))
        if first[0] != name:
            self._problem(
                f"differs: {format_path(first[1])} and {format_path(path)} are one tensor here, and two as stored"
            )
        elif first[1] is path and not self._goes_to_device(name, box, dtype):
            room = self._room(name, box, dtype, path)
            self.targets.append(Target(name, box.offset, box.shape, address(room), int(room.nbytes), box.holders))
            self._alive.append(room)
        return live

    def _goes_to_device(self, name: str, box: Box, dtype: str) -> bool:
        """Returns whether the box is loaded straight into the memory of a device."""
        local = box.local
        if self._copies is None or box.dtype != dtype or not self._copies.takes(local):
            return False
        assert isinstance(local, torch.Tensor)
        if not local.is_contiguous() or local.is_conj() or local.is_neg():
            return False
        if self._rooms.setdefault(storage_address(local), name) != name:
            return False
        self._device_targets.append(DeviceTarget(name, box.offset, local.detach()))
        return True

    def _room(self, name: str, box: Box, dtype: str, path: Path) -> Value:
        """Returns the memory to load into: the live memory itself, or memory that is copied into it at the end."""
        local = box.local
        fits = box.dtype == dtype and box.dense and is_writable(local)
        if fits and self._rooms.setdefault(storage_address(local), name) == name:
            return local
        room = new_value(dtype, box.shape, array=isinstance(local, np.ndarray))
        self._finish.append(lambda: _copy(local, room))
        if box.dtype != dtype:
            self._finish.append(lambda: self._look_for_misfits(room, dtype, box.dtype, path))
        return room

    def _look_for_misfits(self, room: Value, dtype: str, here: str, path: Path) -> None:
        count = misfits(room, dtype, here)
        if count > 0:
            self._misfits.append(f"{format_path(path)} ({count} of {dtype} as stored, {here} here)")


def _optimizer_rooms(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns the optimizer's state_dict(), with a stand-in for the state of every parameter that has none yet."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    rooms = optimizer.state_dict()
    return {**rooms, "state": {**dict(enumerate(map(_RoomLike, parameters))), **rooms["state"]}}


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    else:
        yield value


def _is_live(leaf: Any) -> bool:
    return is_value(leaf) or isinstance(leaf, PerRank) or tree.is_stateful(leaf)


def _refill(container: dict[Any, Any], values: dict[Any, Any]) -> None:
    container.clear()
    container.update(values)


@torch.no_grad()
def _copy(target: Value, source: Value) -> None:
    if isinstance(target, np.ndarray):
        target[...] = source
    else:
        target.copy_(source)  # type: ignore[arg-type]
