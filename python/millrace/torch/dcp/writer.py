# SPDX-License-Identifier: Apache-2.0
"""Writes checkpoints for torch.distributed.checkpoint."""

from __future__ import annotations

import dataclasses
import os
import uuid
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from millrace import _core

from .. import line as lines
from ..checkpointer import Tier
from ..device_image import CudaImageCopies, DeviceImage
from ..dist import initialized
from ..tensors import Box, address, box_of, dtype_name
from . import place
from .copies import Copies
from .document import Document, Pieces, dump
from .place import CheckpointId
from .stager import Stager

_DCP_VERSION = "1.0.0"  # the version of torch's Metadata


@dataclasses.dataclass(frozen=True)
class _Part:
    """Data from the coordinator to a rank, in the storage_data of the rank's plan. A planner that caches plans may
    return the data of an earlier save. The data therefore has no step, and the attempt is valid for `root` only."""

    root: str
    attempt: str
    nonce: str
    rank: int
    world_size: int
    pieces: frozenset[str]  # tensors that are stored as one tensor per chunk


class StorageWriter(dcp.StorageWriter):
    """Writes checkpoints for `dcp.save` and `dcp.async_save`. Each rank writes its file and its part record durably;
    then the coordinator writes the manifest. A step that was not finished is invisible, and a later save removes it.

    checkpoint_id: a path or URL. "run/step-200" is step 200 of the checkpoints in "run". Any other id is the folder
        itself: each save to it gets the next free number as its step. `dcp.save(..., checkpoint_id=...)` sets another
        id for that save and those after it.
    keep_last, keep_every, threads, memory_bytes, commit_timeout: as in Checkpointer. The timeout matters only if the
        storage shows a part late, because DCP itself has waited for all ranks. The copy of the state that async_save
        stages is not part of memory_bytes.
    tiers: folders nearer than those of the ids, nearest first: paths, URLs or millrace.torch.Tier. A save is written to
        the nearest tier, which all ranks must see. The save is complete when this tier has committed it. In the
        background, each rank copies its file to the other tiers and to the folder of the id, which commit by
        themselves. The next save waits for these copies. All ids must be in one folder.
    save_every: with tiers: only steps divisible by this number are saved to the folder of the id; 0: all steps.
    new_run: True: as in Checkpointer, this process may save to a folder that has steps, without having loaded one
        through StorageReader or Checkpointer.

    Keep one writer for the whole run: it keeps the memory of the snapshot and, as the stager of async_save, the memory
    of the staged copy. A step that this job has committed cannot be written again. A restarted job may replace it.

    Raises on all ranks, as DCP's CheckpointException: OSError (no space, storage), FileExistsError (the step; new_run),
    TypeError (a dtype that safetensors does not have, planner data that is not plain), ValueError, MemoryError.
    """

    def __init__(
        self,
        checkpoint_id: CheckpointId,
        *,
        keep_last: int = 0,
        keep_every: int = 0,
        threads: int = 0,
        memory_bytes: int = 0,
        commit_timeout: float = 600.0,
        tiers: Sequence[str | os.PathLike[str] | Tier] = (),
        save_every: int = 0,
        new_run: bool = False,
    ) -> None:
        super().__init__()
        self._new_run = new_run
        self._tiers = [tier if isinstance(tier, Tier) else Tier(tier) for tier in tiers]
        if self._tiers and self._tiers[0].save_every > 1:
            raise ValueError(f"{self._tiers[0].url}: the nearest tier takes every save")
        if save_every > 1 and not self._tiers:
            raise ValueError("save_every without tiers")
        self._keep = Tier("", keep_last, keep_every, save_every)
        self._options: dict[str, Any] = dict(
            threads=threads,
            memory_bytes=memory_bytes,
            commit_timeout=commit_timeout,
            pin=torch.cuda.is_available(),
        )
        self._id = checkpoint_id
        self._start()

    def _start(self) -> None:
        self._stager = Stager()
        self._image_copies = CudaImageCopies()
        self._saver: _core.Saver | None = None
        self._saver_of: tuple[str, str, int, int] | None = None
        self._root, self._step = "", 0
        self._save_id = ""
        self._rank = 0
        self._use_collectives = True
        self._copies = Copies(self._options["commit_timeout"])
        self._root_of_tiers: str | None = None
        self._line: lines.Line = []
        self._is_first, self._turns = True, 0  # results of lines.begin_save

    @property
    def checkpoint_id(self) -> CheckpointId:
        """The id that the next save uses."""
        return self._id

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: CheckpointId) -> bool:
        return place.is_checkpoint_id(checkpoint_id)

    def reset(self, checkpoint_id: CheckpointId | None = None) -> None:
        if checkpoint_id is not None:
            self._id = checkpoint_id

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id=self._id, save_id=self._save_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        rank = kwargs.get("rank")
        if rank is None:  # before torch 2.8
            rank = torch.distributed.get_rank() if initialized() else 0
        self._rank = rank
        self._use_collectives = kwargs.get("use_collectives", True)
        self._save_id = uuid.uuid4().hex

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        root, step = place.locate(self._id)
        if not self._use_collectives:
            root = place.of_rank(root, self._rank)
        self._check_tiers(root)
        self._copies.join()  # keeps the nearest tier from running far ahead; failures were warnings
        if step is None:
            # No rank writes before all ranks have passed this point, so all ranks find the same steps.
            step = max((each for at in self._places(root) for each in _core.list_step_numbers(at)), default=-1) + 1
        self._root, self._step = root, step
        self._is_first, self._turns = lines.begin_save(root)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        pieces = frozenset(name for plan in plans for name in _in_pieces(plan))
        nonce = place.nonce()
        attempt = place.attempt(self._places(self._root), nonce)
        self._find_line()
        return [
            dataclasses.replace(plan, storage_data=_Part(self._root, attempt, nonce, rank, len(plans), pieces))
            for rank, plan in enumerate(plans)
        ]

    def _find_line(self) -> None:
        """Finds the line that the save continues. Raises FileExistsError."""
        places = self._places(self._root)
        line = lines.recall(places)
        names: lines.Names = []
        if self._is_first or line is None:
            names = [entry for root in places for entry in _core.list_step_names(root)]
        if line is None:
            steps = lines.committed(names)
            if steps and not self._new_run:
                raise lines.refuse(self._root, steps)
            line = []
        said = lines.left_behind(names, self._step, line) if line or not self._new_run else None
        if said is not None:
            warnings.warn(f"checkpoint {self._root}: {said}", RuntimeWarning, stacklevel=2)
        self._line = line

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        part = plan.storage_data
        if not isinstance(part, _Part):
            raise ValueError("the plan of this save is of another StorageWriter: its planner caches plans; use one that "
                             "has served this writer only")  # fmt: skip
        saver = self._saver_for(part)
        names = [_stored_name(item, part) for item in plan.items]
        values = [_resolve(item, planner, whole=item.index.fqn in part.pieces) for item in plan.items]
        taken = [box.nbytes > 0 and (not box.dense or self._image_copies.takes(box.local)) for box in values]
        tensors = [
            (name, box.dtype, box.global_shape, box.offset, box.shape, 0 if is_taken else address(box.local))
            for name, box, is_taken in zip(names, values, taken, strict=True)
        ]
        saver.continue_from(self._line)  # the coordinator's line goes into the manifest
        image = DeviceImage(self._image_copies, [box.local for box in values])
        try:
            pending = saver.save_part(self._step, tensors, fill=image.fill if any(taken) else None)
        except BaseException:
            image.ticket().wait()  # before the image's memory is used again
            raise
        image.wait_for(pending)
        self._stager.release()  # the snapshot is taken
        pending.wait()
        if part.rank > 0:
            self._copy_to_tiers()
        results: Future[list[WriteResult]] = Future()
        results.set_result(
            [
                WriteResult(index=item.index, size_in_bytes=box.nbytes, storage_data=name)
                for item, box, name in zip(plan.items, values, names, strict=True)
            ]
        )
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        metadata.version = _DCP_VERSION
        metadata.storage_data = {result.index: result.storage_data for of_rank in results for result in of_rank}
        metadata.storage_meta = self.storage_meta()
        assert self._saver is not None  # write_data() was called before
        self._saver.commit(self._step, dump(_document(metadata)))
        assert self._saver_of is not None
        lines.remember(self._places(self._root), _core.line_after(self._saver_of[1], self._step, self._line, []))
        self._copy_to_tiers()

    def wait(self) -> None:
        """Waits until the saves are in all tiers. Raises the error if the last save did not reach a tier."""
        failures = self._copies.join()
        if failures:
            raise failures[0][1]

    def _places(self, root: str) -> list[str]:
        """Returns the places of the checkpoints of `root`, nearest first."""
        return [*(os.fspath(tier.url) for tier in self._tiers), root]

    def _check_tiers(self, root: str) -> None:
        if not self._tiers:
            return
        if not self._use_collectives:
            raise ValueError("a StorageWriter with tiers needs collectives: each rank alone has no tiers")
        if self._root_of_tiers not in (None, root):
            raise ValueError(f"{root}: the tiers have checkpoints of {self._root_of_tiers}; make another StorageWriter")
        self._root_of_tiers = root

    def _rules(self, tier: Tier) -> tuple[int, int, int, str, bool, float, int]:
        last, every = (
            getattr(self._keep if getattr(tier, name) is None else tier, name) for name in ("keep_last", "keep_every")
        )
        return last, every, 0, "", False, (tier.keep_days or 0) * 86400, tier.quota_bytes

    def _copy_to_tiers(self) -> None:
        """Copies from the nearest tier. This rank may have to wait for the commit there."""
        if not self._tiers:
            return
        assert self._saver_of is not None
        _, attempt, rank, _ = self._saver_of
        places = self._places(self._root)
        for tier, target in zip([*self._tiers[1:], self._keep], places[1:], strict=True):
            if tier.save_every <= 1 or self._step % tier.save_every == 0:
                self._copies.start(self._step, attempt, rank, places[:1], target, self._rules(tier))

    # The writer is the stager of async_save if the caller passes none.

    _synchronize_after_execute = False

    @property
    def should_synchronize_after_execute(self) -> bool:
        return self._synchronize_after_execute

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Stages a copy, as Stager.stage."""
        return self._stager.stage(state_dict)

    def synchronize_staging(self) -> None:
        self._stager.synchronize_staging()

    def close(self) -> None:
        """Waits for the copies to other tiers and for the removal of older steps, and frees memory and threads. A later
        save allocates them again."""
        self._copies.join()
        self._stager.close()
        self._saver_of = None
        if self._saver is not None:
            self._saver.close()
            self._saver = None

    # async_save in another process pickles the writer.

    def __getstate__(self) -> dict[str, Any]:
        kept: dict[str, Any] = {
            name: self.__dict__[name] for name in ("_options", "_id", "_tiers", "_keep", "_new_run")
        }
        places = self._places(place.locate(self._id)[0])
        return {**kept, "continues": (places, lines.recall(places))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        places, line = state.pop("continues")
        self.__dict__.update(state)
        self._start()
        lines.hand_on(places, line)

    def _saver_for(self, part: _Part) -> _core.Saver:
        places = self._places(self._root)
        attempt = part.attempt
        if self._turns > 0:
            attempt = place.attempt(places, f"{part.nonce}t{self._turns}")
        elif part.root != self._root:
            attempt = place.attempt(places, part.nonce)
        wanted = (places[0], attempt, part.rank, part.world_size)
        if self._saver is None or self._saver_of != wanted:
            self._saver_of = None
            self._saver = _core.Saver(
                places[0],
                attempt=attempt,
                rank=part.rank,
                world_size=part.world_size,
                keep=self._rules(self._tiers[0] if self._tiers else self._keep),
                **self._options,
            )
            self._saver_of = wanted
        return self._saver


def _in_pieces(plan: SavePlan) -> list[str]:
    count = Counter(item.index.fqn for item in plan.items)
    return [name for name, chunks in count.items() if chunks > 1]


def _stored_name(item: WriteItem, part: _Part) -> str:
    if item.index.fqn not in part.pieces:
        return item.index.fqn
    assert item.tensor_data is not None  # one bytes object per name
    return f"{item.index.fqn}@{','.join(map(str, item.tensor_data.chunk.offsets))}"


def _resolve(item: WriteItem, planner: SavePlanner, *, whole: bool) -> Box:
    """Returns the box that a rank stores for one item; with `whole`, as a separate tensor. Raises TypeError,
    ValueError."""
    name = item.index.fqn
    value = planner.resolve_data(item)
    if item.type == WriteItemType.BYTE_IO:
        content = np.frombuffer(value.getbuffer(), np.uint8)  # type: ignore[union-attr]
        return Box(content, "U8", content.shape, dense=True)
    assert item.tensor_data is not None and isinstance(value, torch.Tensor)
    try:
        box = box_of(value.detach())
    except (TypeError, NotImplementedError) as error:
        raise type(error)(f"{name}: {error} cannot be stored in a checkpoint") from None
    chunk = item.tensor_data.chunk
    if box.shape != tuple(chunk.sizes):
        raise ValueError(f"{name}: the planner gave {list(box.shape)} for a chunk of {list(chunk.sizes)}")
    if whole:
        return box
    return Box(
        box.local,
        box.dtype,
        box.shape,
        dense=box.dense,
        global_shape=tuple(item.tensor_data.size),
        offset=tuple(chunk.offsets),
    )


def _document(metadata: Metadata) -> Document:
    document = Document(planner_data=metadata.planner_data)
    for name, stored in metadata.state_dict_metadata.items():
        if isinstance(stored, BytesStorageMetadata):
            document.bytes.append(name)
            continue
        for chunk in stored.chunks:
            key = MetadataIndex(name, chunk.offsets)
            at = metadata.storage_data[key]
            if at != name:
                pieces = document.pieces.setdefault(
                    name, Pieces(dtype_name(stored.properties.dtype), tuple(stored.size))
                )
                pieces.chunks.append((tuple(chunk.offsets), tuple(chunk.sizes), at))
    return document
