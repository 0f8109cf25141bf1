# SPDX-License-Identifier: Apache-2.0
"""Reads checkpoints for torch.distributed.checkpoint."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import uuid
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from millrace import _core

from .. import line as lines
from ..tensors import (
    address,
    dtype_name,
    is_dense,
    misfit_text,
    misfits,
    new_value,
    storage_address,
    torch_dtype,
)
from . import place
from .document import parse
from .place import CheckpointId

# Memory for data that is not read straight into its tensor: enough to keep a fast disk busy.
_ROOM_BYTES = 512 << 20


class StorageReader(dcp.StorageReader):
    """Reads checkpoints for `dcp.load`. Every byte is verified. Only the boxes of a tensor that this rank needs are
    read. Checkpoints of Checkpointer.save can be read too, as named tensors.

    checkpoint_id: "run/step-200" is step 200 of the checkpoints in "run". Any other id is the folder itself: the newest
        committed step of its newest line is read, as in Checkpointer.restore. Saves of this process to that folder
        continue the step.
    threads: number of threads that read; 0: automatic.
    tiers: folders nearer than the folder of the id, nearest first. Each part is read from the nearest good copy. A file
        that was damaged in a tier is then rewritten there. A path may be a different folder on each node: data that is
        missing on a new node comes from the next tier.
    tier_timeout: seconds after which a tier that does not answer a read is given up, and the next tier is used.

    DCP's planner reads objects other than tensors with torch.load and the full pickle: load only checkpoints of people
    whom you trust. The tensors are never unpickled.

    Raises on all ranks, as DCP's CheckpointException: FileNotFoundError (no such step), millrace.CorruptionError
    (naming file and tensor), NotImplementedError (a newer version), OSError.
    """

    def __init__(
        self,
        checkpoint_id: CheckpointId,
        *,
        threads: int = 0,
        tiers: Sequence[str | os.PathLike[str]] = (),
        tier_timeout: float = 120.0,
    ) -> None:
        super().__init__()
        self._tier_timeout = tier_timeout if tiers else 0.0
        self._tiers = [os.fspath(tier) for tier in tiers]
        self._id = checkpoint_id
        self._threads = threads
        self.reset()

    @property
    def checkpoint_id(self) -> CheckpointId:
        """The id that the next load uses."""
        return self._id

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: CheckpointId) -> bool:
        return place.is_checkpoint_id(checkpoint_id)

    def reset(self, checkpoint_id: CheckpointId | None = None) -> None:
        if checkpoint_id is not None:
            self._id = checkpoint_id
        self._checkpoint: _core.Checkpoint | None = None
        self._places: list[str] = []
        self._names: dict[MetadataIndex, str] = {}
        self._use_collectives = True
        self._load_id = uuid.uuid4().hex

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Reads the metadata. `rank`: reads that rank's checkpoint, for a save without collectives."""
        root, step = place.locate(self._id)
        if kwargs.get("rank") is not None:
            root = place.of_rank(root, kwargs["rank"])
        places = [*self._tiers, root]
        timeout = self._tier_timeout
        checkpoint = _core.Checkpoint(places, step, timeout) if step is not None else _newest(places, timeout)
        metadata, names = read_document(checkpoint)
        metadata.storage_data = names
        metadata.storage_meta = StorageMeta(checkpoint_id=self._id, load_id=self._load_id)
        self._checkpoint = checkpoint
        self._places = places
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._names = metadata.storage_data
        self._use_collectives = kwargs.get("use_collectives", True)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        checkpoint = self._opened()
        if not self._use_collectives:  # each rank reads its own checkpoint
            return plan
        return dataclasses.replace(plan, storage_data=(checkpoint.step, checkpoint.attempt))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        steps = {plan.storage_data for plan in plans}
        if len(steps) > 1:
            found = ", ".join(f"{step} of attempt {attempt}" for step, attempt in sorted(steps))
            raise RuntimeError(f"{self._id}: the ranks found different steps ({found}), since one was committed in "
                               "between: name the step")  # fmt: skip
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        batch = _Batch(self._opened(), planner, self._threads)
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._read_bytes(item.storage_index.fqn))
            else:
                batch.add(item, self._names.get(item.storage_index))
        batch.load()
        if batch.misfits:
            warnings.warn(misfit_text(self._opened().step, batch.misfits), RuntimeWarning, stacklevel=2)
        self._remember()
        if self._tiers:
            self._heal()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _remember(self) -> None:
        checkpoint = self._opened()
        names: lines.Names = []
        if checkpoint.line is None:
            names = [entry for root in self._places for entry in _core.list_step_names(root)]
        line = _core.line_after(checkpoint.attempt, checkpoint.step, checkpoint.line, names)
        lines.remember(self._places, line, restored=True)

    def _heal(self) -> None:
        try:
            self._opened().heal()
        except (OSError, NotImplementedError) as error:  # everything is loaded
            warnings.warn(f"checkpoint: a damaged file stays as it is: {error}", RuntimeWarning, stacklevel=2)

    def _read_bytes(self, name: str) -> io.BytesIO:
        checkpoint = self._opened()
        return io.BytesIO(load_tensor(checkpoint, name).numpy().tobytes())

    def _opened(self) -> _core.Checkpoint:
        if self._checkpoint is None:
            raise ValueError("read_metadata() comes first")
        return self._checkpoint


class _Batch:
    """Read items that are collected and then loaded together."""

    def __init__(self, checkpoint: _core.Checkpoint, planner: LoadPlanner, threads: int) -> None:
        self._checkpoint = checkpoint
        self._planner = planner
        self._threads = threads
        self._stored = checkpoint.tensors
        self._targets: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = []
        # The item, its target, the tensor that it is read into, its stored dtype.
        self._waiting: list[tuple[ReadItem, torch.Tensor, torch.Tensor, str]] = []
        self.misfits: list[str] = []  # tensors with values that do not fit the narrower dtype here
        self._room_bytes = 0
        self._straight: dict[int, str] = {}  # memory -> the tensor that is read straight into it

    def add(self, item: ReadItem, piece: str | None) -> None:
        """Adds an item. piece: the stored tensor that is the whole chunk; None: the chunk is a box of the tensor of its
        name."""
        name = item.storage_index.fqn if piece is None else piece
        offset = tuple(item.storage_offsets)
        if piece is None and item.storage_index.offset is not None:
            offset = tuple(map(sum, zip(item.storage_index.offset, offset, strict=True)))
        target = self._planner.resolve_tensor(item).detach()
        shape = tuple(item.lengths)
        if tuple(target.shape) != shape:
            raise ValueError(f"{name}: {list(shape)} are to be read into a tensor of {list(target.shape)}")
        dtype = self._stored[name][0]
        room = target if self._fits(target, name, dtype) else new_value(dtype, shape, array=False)
        assert isinstance(room, torch.Tensor)
        if math.prod(shape) > 0:
            self._targets.append((name, offset, shape, address(room)))
        self._waiting.append((item, target, room, dtype))
        self._room_bytes += 0 if room is target else room.nbytes
        if self._room_bytes >= _ROOM_BYTES:
            self.load()

    def _fits(self, target: torch.Tensor, name: str, dtype: str) -> bool:
        if not is_dense(target) or target.dtype != torch_dtype(dtype):
            return False
        # Only one of several tied tensors is read in place: two reads at once would mix.
        return target.numel() == 0 or self._straight.setdefault(storage_address(target), name) == name

    @torch.no_grad()
    def load(self) -> None:
        self._checkpoint.load(self._targets, threads=self._threads)
        for item, target, room, dtype in self._waiting:
            if room is not target:
                target.copy_(room)
                count = 0 if target.dtype == room.dtype else misfits(room, dtype, dtype_name(target.dtype))
                if count > 0:
                    self.misfits.append(f"{item.dest_index.fqn} ({count} of {dtype} as stored, {target.dtype} here)")
            self._planner.commit_tensor(item, target)
        self._targets, self._waiting, self._room_bytes = [], [], 0


def load_tensor(
    checkpoint: _core.Checkpoint, name: str, offset: tuple[int, ...] | None = None, shape: tuple[int, ...] | None = None
) -> torch.Tensor:
    """Returns a stored tensor, or a box of it, on the CPU. Raises millrace.CorruptionError, OSError."""
    dtype, whole = checkpoint.tensors[name]
    value = new_value(dtype, tuple(whole) if shape is None else shape, array=False)
    assert isinstance(value, torch.Tensor)
    if value.numel() > 0:
        checkpoint.load([(name, offset or (0,) * value.dim(), tuple(value.shape), address(value))])
    return value


def _newest(places: list[str], tier_timeout: float = 0.0) -> _core.Checkpoint:
    walk = _core.LineWalk([entry for root in places for entry in _core.list_step_names(root)])
    while (step := walk.next()) is not None:
        try:
            checkpoint = _core.Checkpoint(places, step, tier_timeout)
        except FileNotFoundError:  # it has been removed meanwhile
            walk.gone()
            continue
        if walk.read(checkpoint.attempt, checkpoint.line):
            return checkpoint
    raise FileNotFoundError(2, "no checkpoint there", places[-1])


def read_document(checkpoint: _core.Checkpoint) -> tuple[Metadata, dict[MetadataIndex, str]]:
    """Returns DCP's metadata without the places of items, and the stored names of chunks that are separate tensors."""
    document = parse(checkpoint.state)
    boxes = checkpoint.boxes
    hidden = {stored for pieces in document.pieces.values() for _, _, stored in pieces.chunks}
    hidden.update(document.bytes)
    known: dict[str, Any] = {name: BytesStorageMetadata() for name in document.bytes}
    for name, (dtype, shape) in checkpoint.tensors.items():
        if name not in hidden:
            known[name] = _tensor(dtype, shape, boxes[name])
    names: dict[MetadataIndex, str] = {}
    for name, pieces in document.pieces.items():
        known[name] = _tensor(pieces.dtype, pieces.shape, [(offset, shape) for offset, shape, _ in pieces.chunks])
        names.update({MetadataIndex(name, offset): stored for offset, _, stored in pieces.chunks})
    return Metadata(known, planner_data=document.planner_data), names


def _tensor(
    dtype: str, shape: tuple[int, ...], boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]
) -> TensorStorageMetadata:
    chunks = [ChunkStorageMetadata(torch.Size(offset), torch.Size(box)) for offset, box in boxes]
    return TensorStorageMetadata(TensorProperties(dtype=torch_dtype(dtype)), torch.Size(shape), chunks)
