# SPDX-License-Identifier: Apache-2.0
"""Asynchronous checkpoints of a training state: modules, optimizers, loaders and plain data, by name, without
pickle."""

from __future__ import annotations

import errno
import functools
import gc
import math
import os
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import millrace
from millrace import _core

from . import line as lines
from . import state as tree
from .deferral import Deferral, Members, check_owners
from .device_image import CudaImageCopies, DeviceImage, ImageCopies
from .dist import Group, resolve_rank
from .places import Commit, Places, is_damage, restart_of, steps_of_line
from .restore import Restorer
from .share import Share
from .tensors import address, storage_address

# A save in progress:
# .step, .bytes (the size of this rank's file), .done, .status ({tier: "pending", "durable", "failed" or "skipped"}),
# .wait(timeout=None, tier=None), which returns when the step is committed and durable in that tier (default: in all
# tiers). It raises the error of the save, or TimeoutError after `timeout` seconds. If a tier is in a linked folder
# (millrace.link), `tier` may be the bucket of the link: wait() then returns when the bucket has all files of the step.
# .wait_removals(), which returns when the removal of older steps has ended as well.
# Dropping the object does not stop the save.
Save = _core.PendingSave


@dataclass(frozen=True)
class Tier:
    """A folder of checkpoints that is nearer to the training job than the root, for Checkpointer(tiers=[...]).

    url: a folder, as a path or a URL.
    keep_last, keep_every, keep_best, keep_days, quota_bytes: as in Checkpointer, for this tier. None: the
        Checkpointer's value. quota_bytes applies to this folder alone; 0: no quota.
    save_every: only steps divisible by this number are saved here; 0: all steps. Not for the nearest tier, which gets
        every save.
    """

    url: str | os.PathLike[str]
    keep_last: int | None = None
    keep_every: int | None = None
    save_every: int = 0
    keep_best: int | None = None
    keep_days: float | None = None
    quota_bytes: int = 0


# Called with (step, tier, error) on a background thread when a save has ended in a tier. error is None if the step is
# durable in that tier.
OnSaved = Callable[[int, str, Exception | None], object]

# The retention rules as the Saver takes them: last, every, best, monitor, higher is better, seconds, bytes.
_KeepEntry = tuple[int, int, int, str, bool, float, int]


class Checkpointer:
    """Saves and restores a training state below `root`. Every rank of the job constructs one at the same point.

    root: a folder, as a path or a URL.
    keep_last, keep_every, keep_best, keep_days: a committed step is kept if one of these rules keeps it. keep_last: the
        newest `keep_last` steps. keep_every: the steps divisible by `keep_every`. keep_best: the `keep_best` steps with
        the best `monitor` among the metrics passed to save(), by `mode`: "min" or "max". keep_days: the steps younger
        than `keep_days` days. The newest step is always kept. Without keep_last, keep_best and keep_days, all steps are
        kept. A step is removed only when a newer step is durable.
    quota_bytes: the space that all committed steps together may take. Above it, kept steps are removed too: first the
        oldest, then those of keep_every, then those of keep_best, worst first. The step that is being written takes
        space in addition to the quota. 0: no quota.
    rank, world_size: default to those of torch.distributed if it is initialised, else to RANK and WORLD_SIZE, else 0
        of 1.
    process_group: the ranks that save together; default: all.
    threads: number of threads that save; 0: automatic.
    memory_bytes: the host memory, pinned or not, that the saves of all ranks of this node may use together; 0: as much
        as the ranks' files. Each rank has an equal share, by LOCAL_WORLD_SIZE or SLURM_NTASKS_PER_NODE. With tiers, a
        quarter of the share is for the copies between tiers. A state larger than the rank's share is written through
        that share while training waits, until the nearest tier has the step. The log reports this. Memory of saves that
        hang in storage counts too.
    reserve: memory for the snapshot, allocated now and touched in the background, so that the first save stops training
        no longer than later saves. Either the bytes of this rank's file, or a state as passed to save() whose tensors
        exist already. (An optimizer has no tensors before its first step; those of AdamW take 2 x 4 bytes per
        parameter.) 0: the first save allocates the memory, and touching 1 GB of fresh memory can take a second.
    commit_timeout: seconds that a save waits for the other ranks before it fails with an error that names them. A rank
        that fails tells the other ranks, which then end at once with the same cause. save() waits for the previous save
        no longer than the larger of commit_timeout and tier_timeout. It then gives up the previous save: TimeoutError.
    tiers: folders nearer than `root`, nearest first: paths, URLs or Tier. A save is written to the first tier, and from
        its files to the others in the background. Each tier commits by itself. A tier that fails causes a warning. The
        save has failed if no tier has the step. restore() reads each part from the nearest good copy, and then rewrites
        files and manifests that were damaged in a tier. A path that is a different folder on each node, such as a local
        NVMe, is detected.
    tier_timeout: seconds that a tier may make no progress, for example when its file server is gone. The tier is then
        given up for that save, and for later saves until it answers. A restore continues with the next tier. If the
        tier cannot be listed, restore() raises TimeoutError, because the tier may have a newer step.
    save_every: with tiers: only steps divisible by this number are saved to `root`; 0: all steps.
    unchanged: what to do with a tensor whose bytes equal those in the previous save, such as a frozen backbone or the
        base of a LoRA. "write": it is written again. "refer": the step refers to the file of the earlier step that has
        the tensor. That file is kept as long as a step refers to it, regardless of the retention rules. The first save
        of a run writes all tensors, and so does a save after a tier has failed. Builds of Millrace before this option
        refuse such steps.
    new_run: True: this process may save to a folder that already has steps, without having restored one. It starts
        another run in this folder. The steps of the former run are left behind, and no restore chooses them once this
        run has saved.
    on_saved: called with (step, tier, error) on a background thread when a save has ended in a tier.

    With several ranks, the constructor, restore(), latest_step() and steps() are collective: every rank calls them.
    save() is not collective, but all ranks must call it with the same step.

    Not thread-safe. The object owns threads: close() it or use it as a context manager. Pickling keeps only the
    arguments. Raises ValueError (rank and world size, torch.distributed not initialised), OSError, MemoryError
    (reserve).
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        keep_last: int = 0,
        keep_every: int = 0,
        keep_best: int = 0,
        monitor: str = "",
        mode: str = "min",
        keep_days: float = 0.0,
        quota_bytes: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        process_group: Any = None,
        threads: int = 0,
        memory_bytes: int = 0,
        reserve: int | dict[str, Any] = 0,
        commit_timeout: float = 600.0,
        tiers: Sequence[str | os.PathLike[str] | Tier] = (),
        save_every: int = 0,
        tier_timeout: float = 120.0,
        unchanged: str = "write",
        new_run: bool = False,
        on_saved: OnSaved | None = None,
    ) -> None:
        self._root = os.fspath(root)
        self._tiers = [tier if isinstance(tier, Tier) else Tier(tier) for tier in tiers]
        self._on_saved = on_saved
        self._new_run = new_run
        self._rank, self._world_size = resolve_rank(rank, world_size, process_group)
        self._process_group = process_group
        self._threads = threads
        if mode not in ("min", "max"):
            raise ValueError(f"mode is 'min' or 'max', not {mode!r}")
        if unchanged not in ("write", "refer"):
            raise ValueError(f"unchanged is 'write' or 'refer', not {unchanged!r}")
        self._best_by = (monitor, mode == "max")
        self._keep = Tier("", keep_last, keep_every, 0, keep_best, keep_days, quota_bytes)
        self._options: dict[str, Any] = dict(
            threads=threads,
            memory_bytes=memory_bytes,
            reserve_bytes=reserve if isinstance(reserve, int) else self._file_bytes(reserve),
            commit_timeout=commit_timeout,
            save_every=save_every,
            tier_timeout=tier_timeout,
            pin=torch.cuda.is_available(),
            refer_unchanged=unchanged == "refer",
        )
        self._open()

    def _open(self) -> None:
        self._group = Group(self._world_size, self._process_group)
        # The folders of checkpoints, nearest first.
        self._places = Places(
            [*(os.fspath(tier.url) for tier in self._tiers), self._root], self._options["tier_timeout"]
        )
        self._attempt, self._names = self._group.from_rank0(self._rank, self._make_attempt)
        self._restored: lines.Line | None = None  # the line that this object has restored
        self._last_step: int | None = None  # the last step that this attempt began to save
        self._saver = _core.Saver(
            self._root,
            attempt=self._attempt,
            rank=self._rank,
            world_size=self._world_size,
            tiers=[self._tier_entry(tier) for tier in self._tiers],
            keep=self._keep_entry(self._keep),
            **self._options,
        )
        self._reporters: list[threading.Thread] = []
        self._healer: threading.Thread | None = None  # repairs the files that the last restore found damaged
        self._opened: _core.Checkpoint | None = None  # rank 0: the checkpoint between listing and restore
        self._in_use: _core.Checkpoint | None = None  # the checkpoint that a restore has just read
        self._copies: ImageCopies = CudaImageCopies()
        self._deferral = Deferral()
        self._last: Save | None = None
        self._stalls = [0, 0.0, 0.0]  # the number of saves, seconds in total, seconds of the last save

    def _make_attempt(self) -> tuple[str, lines.Names]:
        """Returns an attempt newer than every attempt in every tier, and the names that the tiers have."""
        names = self._places.ask_names()
        restarts = [restart_of(attempt) for _, _, attempts in names for attempt in attempts]
        return f"r{max(restarts, default=-1) + 1:04}-{secrets.token_hex(4)}", names

    def _tier_entry(self, tier: Tier) -> tuple[str, _KeepEntry, int, bool]:
        url = os.fspath(tier.url)
        return url, self._keep_entry(tier), tier.save_every, self._is_node_local(url)

    def _keep_entry(self, tier: Tier) -> _KeepEntry:
        """Returns the retention rules of a tier. Rules that are not set are those of the Checkpointer."""
        last, every, best, days = (
            getattr(self._keep if getattr(tier, name) is None else tier, name)
            for name in ("keep_last", "keep_every", "keep_best", "keep_days")
        )
        if not 0 <= days < math.inf:
            raise ValueError(f"keep_days is {days}, not a number of days")
        return last, every, best, *self._best_by, days * 86400, tier.quota_bytes

    def _is_node_local(self, url: str) -> bool:
        """Returns whether some rank does not see a file that rank 0 creates in the folder."""
        path = url.removeprefix("file://")
        if self._world_size == 1 or "://" in path:
            return False
        name = self._group.from_rank0(self._rank, lambda: _make_probe(path))
        seen = self._group.gather((Path(path) / name).exists())
        if self._rank == 0:
            (Path(path) / name).unlink(missing_ok=True)
        return not all(seen)

    def save(
        self,
        step: int,
        state: dict[str, Any],
        metrics: Mapping[str, float] | None = None,
        *,
        owners: Sequence[torch.nn.Module | torch.optim.Optimizer] = (),
    ) -> Save:
        """Takes a snapshot of `state` and returns. Writing, hashing and the commit run in the background, and
        everything in `state` may change at once.

        Copies from a CUDA device overlap the next forward and backward if every CUDA tensor belongs to a module
        (parameter or buffer) or optimizer (state) that is an entry of `state` or of `owners`. The optimizers' next
        step() then waits for the copies on the device. The first saves wait for their copies, until two steps have
        shown that nothing else changes these tensors. If something else changes them, such as weight averaging, all
        saves wait. If such a change happens only later, the save in progress is not committed, and a warning is given.
        Changes through `.data` and in replayed CUDA graphs are not detected: call `save.wait()` before them, and before
        a graph is captured.

        step: a number greater than the step of the previous save.
        state: a dict of
            objects with state_dict() and load_state_dict(): modules (in the wrappers of DistributedDataParallel and
                torch.compile, the module inside), optimizers, schedulers, millrace.Loader;
            tensors (also DTensor, of which each rank writes its shard) and NumPy arrays;
            None, bool, int, float, str, bytes, NumPy scalars, torch.dtype, and dict, list and tuple of all these;
            PerRank(value), for values that differ between ranks.
        metrics: the values measured at this step, by name, such as {"val_loss": 2.1}, for keep_best. Only those of
            rank 0 are used. Values that are not finite are left out.
        owners: the modules and optimizers that own the tensors of plain dicts in `state`, such as model.state_dict().
            Without owners, a save of such a dict waits for its copies.

        With several ranks, all values except DTensor and PerRank are taken to be equal on all ranks: one rank writes
        each tensor, and rank 0 writes the plain data.

        Waits for the previous save to end, and raises its error if wait() was not called. With tiers, save() waits only
        until the snapshot of the previous save is free, and while three saves are unfinished in some tier. Raises
        TypeError naming the path of a value that cannot be stored (nothing is ever pickled), ValueError (the step,
        names), FileExistsError (the step was committed by a newer attempt, or the folder has steps and this process has
        restored none of them: see new_run), OSError (no space), MemoryError. With several ranks, the other ranks then
        end with the same cause, and all ranks give up the step.

        A run that has gone back to an earlier step leaves the later steps behind. A RuntimeWarning names them once.
        """
        start = time.perf_counter()
        self._continue_line(step)
        try:
            with _no_garbage_collection():
                self._last = self._save(step, state, metrics or {}, owners)
        except FileExistsError:  # the other ranks find that step too
            raise
        except Exception as error:
            self._saver.abandon(step, f"{type(error).__name__}: {error}")
            raise
        seconds = time.perf_counter() - start
        self._stalls = [self._stalls[0] + 1, self._stalls[1] + seconds, seconds]
        self._last_step = step
        self._restored = _core.line_after(self._attempt, step, self._restored, [])
        lines.remember(self._places.urls, self._restored)
        if self._on_saved is not None:
            self._report(self._last, self._on_saved)
        return self._last

    def _continue_line(self, step: int) -> None:
        """Tells the saver which commit the first save after the start or after a restore continues. Each later save
        continues the save before it. Raises FileExistsError."""
        if self._last_step is not None:
            return
        line = self._restored
        if line is None:
            line = [] if self._new_run else lines.recall(self._places.urls)
            steps = lines.committed(self._names)
            if line is None and steps:
                raise lines.refuse(self._root, steps)
            self._restored = line = line or []
        self._saver.continue_from(line)
        if self._rank == 0 and (line or not self._new_run):
            said = lines.left_behind(self._names, step, line)
            if said is not None:
                warnings.warn(f"checkpoint {self._root}: {said}", RuntimeWarning, stacklevel=3)

    def _report(self, save: Save, on_saved: OnSaved) -> None:
        for tier, status in save.status.items():
            if status != "skipped":
                self._in_background(_report_tier, save, tier, on_saved)

    def _in_background(self, call: Callable[..., object], *arguments: Any) -> None:
        """Runs `call` on a thread. close() waits for the thread."""
        self._reporters = [thread for thread in self._reporters if thread.is_alive()]
        self._reporters.append(threading.Thread(target=call, args=arguments, daemon=True))
        self._reporters[-1].start()

    def _heal(self, opened: _core.Checkpoint) -> None:
        self._healer = threading.Thread(target=_heal, args=(opened,), daemon=True)
        self._healer.start()

    def _save(self, step: int, state: dict[str, Any], metrics: Mapping[str, float], owners: Sequence[Any]) -> Save:
        check_owners(owners)
        encoded = tree.encode(state, self._rank)
        names = self._names_to_write(encoded)
        boxes = [encoded.boxes[name] for name in names]
        values = [box.local for box in boxes]
        # Values on a device, and values whose elements are not in order, are copied directly into the save's memory.
        on_device = [self._copies.takes(value) and box.nbytes > 0 for box, value in zip(boxes, values, strict=True)]
        taken = [is_there or (not box.dense and box.nbytes > 0) for box, is_there in zip(boxes, on_device, strict=True)]
        tensors = [
            (name, box.dtype, box.global_shape, box.offset, box.shape, 0 if is_taken else address(box.local))
            for name, box, is_taken in zip(names, boxes, taken, strict=True)
        ]
        document = tree.dump(encoded.state) if self._rank == 0 else "null"
        rank_document = tree.dump({"$dict": encoded.rank_state}) if encoded.rank_state else "null"
        measured = {name: float(value) for name, value in metrics.items()}
        if not any(taken):
            return self._saver.save(step, tensors, document, rank_document, measured)
        members = Members(state, owners)
        memories = [storage_address(value) for value, is_there in zip(values, on_device, strict=True) if is_there]
        returns_early = bool(memories) and self._deferral.may_defer(members, memories)
        if returns_early:  # a forward may change buffers
            with torch.no_grad():
                values = [
                    value.clone() if is_there and storage_address(value) in members.buffers else value  # type: ignore[union-attr]
                    for value, is_there in zip(values, on_device, strict=True)
                ]
        image = DeviceImage(self._copies, values)
        try:
            save = self._saver.save(step, tensors, document, rank_document, measured, image.fill)
        except BaseException:
            image.ticket().wait()  # before the image's memory is used again
            raise
        if returns_early:
            self._deferral.begin(image.ticket(), members, save.filled)
            return save
        image.wait_for(save)
        return save

    def restore(
        self,
        state: dict[str, Any],
        step: int | None = None,
        *,
        strict: bool = True,
        only: str | Collection[str] | None = None,
        share: bool | None = None,
    ) -> int | None:
        """Restores `state`, a dict as passed to save(), to the saved values. Returns the step, or None if there is
        none.

        step: the step to restore. Default: the newest step of the newest attempt or, if that is damaged, the next older
            step that it continues. Steps that a run left behind when it went back are never chosen. A damaged step is
            skipped with a warning that names it. Damaged means: wrong bytes, or files that are missing, that the device
            cannot read (EIO) or that this user may not read.
        strict: True: a name that only `state` or only the checkpoint has raises ValueError, which lists all such names.
            False: such names are left alone, and an entry of `state` of which nothing was restored causes a
            RuntimeWarning.
        only: restores only these entries of `state`, such as ("model",), or only these names in its modules and dicts,
            such as ("model.embed", "model.layers.*.norm.weight"). The rest of `state` stays as it is, and the rest of
            the checkpoint is ignored. `strict` applies to the selected names, and each name must match something.
        share: True: if several ranks have the same data, such as replicas of data parallelism, one of them reads it,
            and the others get it through torch.distributed, on the CPU. Each rank reads the data that it has written,
            so with tiers on single nodes nothing comes from farther away. Default: True if the checkpoints are in a
            bucket. False on a file system, where the nodes' page caches share the reads, which is often faster.

        Tensors, arrays, dicts and lists are filled in place. Other plain values are put into the dict or list that
        contains them. Objects get load_state_dict(). Dtypes are converted as in torch's load_state_dict: values that do
        not fit a narrower dtype wrap around or become infinite, and one RuntimeWarning names their tensors. Shapes must
        be equal, except for the _extra_state of modules, which set_extra_state() gets as it was saved. The world size
        may differ from that of the save. Each rank gets the PerRank values of the rank with the same number. If the
        checkpoint lacks that rank, the values stay as they are, with a warning. With several ranks, all ranks restore
        the same step.

        Raises ValueError (names, shapes, two stored tensors for one live tensor), FileNotFoundError (no such step),
        millrace.CorruptionError (the given step, or every step, is damaged), PermissionError and OSError (the given
        step cannot be read), ConnectionError and TimeoutError (a server does not answer), NotImplementedError (the
        newest step was written by a newer version). After an error, the values in `state` are unspecified.
        """
        self._deferral.finish()
        only = (only,) if isinstance(only, str) else only
        if only is not None and len(only) == 0:
            raise ValueError("only: names nothing")
        if share is None:
            share = "://" in self._root and not self._root.startswith("file://") and self._group.has_cpu()
        share = share and self._world_size > 1
        if step is not None:
            self._restore_step(state, (step, None), strict, only, share)
            self._go_on_from_restored()
            return step
        failures: dict[Commit, str] = {}
        told: set[Commit] = set()
        while True:
            # List again after each failure: a step that another process removed or replaced meanwhile is not damaged.
            candidate, damaged = self._group.from_rank0(self._rank, functools.partial(self._newest_good, failures))
            self._warn([text for commit, text in damaged.items() if commit not in told])
            told |= damaged.keys()
            if candidate is None:
                break
            failure = self._restore_step(state, candidate, strict, only, share)
            if failure is None:
                self._go_on_from_restored()
                return candidate[0]
            failures[candidate] = failure
        if damaged:
            raise millrace.CorruptionError(f"no checkpoint in {self._root} is whole: {'; '.join(damaged.values())}")
        if failures:  # not None: the tensors may be half overwritten
            raise FileNotFoundError(errno.ENOENT, "every checkpoint was removed while it was restored", self._root)
        return None

    def _go_on_from_restored(self) -> None:
        """Makes later saves continue the restored commit. If this is not the commit that this object saved last, a new
        attempt begins, which may save lower steps than the attempt before."""
        opened, self._in_use = self._in_use, None
        assert opened is not None
        commit = (opened.attempt, opened.step)
        if self._last_step is not None and commit == (self._attempt, self._last_step):
            return
        names: lines.Names = []
        if opened.line is None:
            names = self._group.from_rank0(
                self._rank,
                self._places.list_names,
            )
        line = _core.line_after(*commit, opened.line, names)
        if self._last_step is not None or restart_of(opened.attempt) >= restart_of(self._attempt):
            self._begin_attempt()
        self._restored = line
        lines.remember(self._places.urls, line, restored=True)

    def _begin_attempt(self) -> None:
        last = self._last
        try:
            self.close()
        except Exception as error:  # the run has gone back to an undamaged step
            step = "?" if last is None else last.step
            warnings.warn(
                f"checkpoint {self._root}: the save of step {step} failed: {error}", RuntimeWarning, stacklevel=4
            )
        self._open()

    def latest_step(self) -> int | None:
        """Returns the newest step of the newest line whose manifest is good, or None if there is none. Warns of steps
        that a newer version of Millrace wrote. Raises OSError."""
        return max(self.steps(), default=None)

    def steps(self) -> list[int]:
        """Returns the committed steps of the newest line, ascending, without those whose manifest is damaged. restore()
        chooses from these. Steps that the line left behind are not included; `millrace ckpt ls` shows all. Warns of
        steps that a newer version of Millrace wrote, which are not included either. Raises OSError."""
        found = self._group.from_rank0(
            self._rank,
            self._places.list_steps,
        )
        for place, info in found:
            if info["newer"] and self._rank == 0:
                message = f"checkpoint {place}: step {info['step']} is left out: {info['damage']}"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
        return steps_of_line([info for _, info in found])

    @property
    def last_save(self) -> Save | None:
        """The save that began last; None before the first save and after close()."""
        return self._last

    def stats(self) -> dict[str, Any]:
        """Returns these counters: "saves", "stall_seconds" (total time that training waited in save()),
        "last_stall_seconds", and the counters of writing: "write_bytes", "write_seconds", "referred_bytes" (of tensors
        that were not written again: unchanged="refer") and "peak_memory_bytes" (the most memory that this rank's saves
        have used at once)."""
        saves, seconds, last = self._stalls
        return {**self._saver.metrics(), "saves": saves, "stall_seconds": seconds, "last_stall_seconds": last}

    def close(self) -> None:
        """Waits for all tiers of the saves in progress and for the removal of older steps, and stops the threads.
        Raises the error of the last save, even if wait() has raised it already. With tiers, a save fails only if no
        tier has the step."""
        last, self._last = self._last, None
        self._deferral.close()
        try:
            if last is not None:
                wait_for_any(last)
        finally:
            self._saver.close()
            for reporter in self._reporters:
                reporter.join()
            if self._healer is not None:
                self._healer.join(self._options["tier_timeout"])  # it may write to a tier that hangs

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is None:
            self.close()
        else:
            self._deferral.close()
            self._saver.close()

    def __getstate__(self) -> dict[str, Any]:
        # A process group cannot be pickled: the copy uses the default group.
        kept = ("_root", "_rank", "_world_size", "_threads", "_options", "_tiers", "_keep", "_best_by", "_on_saved",
                "_new_run")  # fmt: skip
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _process_group=None)
        self._open()

    def _names_to_write(self, encoded: tree.Encoded) -> list[str]:
        """Returns the tensors that this rank writes: all that only this rank has, and its share of those that other
        ranks have too."""
        prefix = f"rank{self._rank}/"
        mine: set[str] = set()
        shared: dict[tuple[int, ...] | None, list[str]] = {}  # by the ranks that have the same box
        for name, box in encoded.boxes.items():
            if name.startswith(prefix) or self._world_size == 1:
                mine.add(name)
            else:
                shared.setdefault(box.holders, []).append(name)
        for holders, names in shared.items():
            names.sort()
            count = self._world_size if holders is None else len(holders)
            place = self._rank if holders is None else encoded.boxes[names[0]].place
            if count > 0:
                writers = _core.assign_writers([encoded.boxes[name].nbytes for name in names], count)
                mine.update(name for name, writer in zip(names, writers, strict=True) if writer == place)
        return [name for name in encoded.boxes if name in mine]

    def _file_bytes(self, state: dict[str, Any]) -> int:
        """Returns the approximate size of this rank's file for `state`: its tensors, plus a kilobyte of header for
        each."""
        encoded = tree.encode(state, self._rank)
        return sum(encoded.boxes[name].nbytes + 1024 for name in self._names_to_write(encoded)) + 4096

    def _newest_good(self, failures: dict[Commit, str]) -> tuple[Commit | None, dict[Commit, str]]:
        opened, damaged = self._places.newest_good(failures)
        if opened is None:
            return None, damaged
        self._opened = opened
        return (opened.step, opened.attempt), damaged

    def _open_step(self, commit: Commit) -> _core.Checkpoint:
        step, attempt = commit
        opened, self._opened = self._opened, None
        if opened is None or (opened.step, opened.attempt) != commit:
            opened = self._places.open_step(step)
        if attempt is not None and opened.attempt != attempt:
            raise FileNotFoundError(errno.ENOENT, f"step {step} was replaced by attempt {opened.attempt}", self._root)
        return opened

    def _restore_step(
        self, state: dict[str, Any], commit: Commit, strict: bool, only: Collection[str] | None, share: bool
    ) -> str | None:
        """Restores one step. Returns None if `state` is restored on all ranks, else the damage. With an attempt in
        `commit`, damage is returned, since another step may be tried. Without an attempt, damage is raised."""
        planned: list[tuple[_core.Checkpoint, Restorer]] = []

        def plan() -> None:
            opened = self._open_step(commit)
            restorer = Restorer(opened, self._rank, strict, None if share else self._copies)
            restorer.plan(state, only)
            planned.append((opened, restorer))
            if not share:
                restorer.load(restorer.targets, self._threads)
                restorer.load_devices(self._threads)

        if failure := self._on_all_ranks(commit, plan):
            return failure
        opened, restorer = planned[0]
        if share:
            shared = Share(self._group, self._rank, restorer.targets)
            for body in (lambda: restorer.load(shared.mine, self._threads), shared.exchange):
                if failure := self._on_all_ranks(commit, body):
                    return failure
        restorer.finish()
        self._in_use = opened
        if self._tiers:
            self._heal(opened)
        return None

    def _on_all_ranks(self, commit: Commit, body: Callable[[], None]) -> str | None:
        """Returns None if `body()` succeeded on all ranks; else handles damage in the same way as _restore_step."""
        error: Exception | None = None
        try:
            with _no_garbage_collection():
                body()
        except Exception as caught:  # the other ranks must know of the error before it is raised
            error = caught
        step, attempt = commit
        answers = self._group.gather(None if error is None else (is_damage(error), f"step {step}: {error}"))
        failed = [(rank, *answer) for rank, answer in enumerate(answers) if answer is not None]
        if not failed:
            return None
        rank, _, text = failed[0]
        if attempt is not None and all(damage for _, damage, _ in failed):
            return text
        raise error if error is not None else RuntimeError(f"restore failed on rank {rank}: {text}")

    def _warn(self, failures: list[str]) -> None:
        if self._rank == 0:
            for failure in failures:
                warnings.warn(
                    f"checkpoint {self._root}: {failure}; trying the step before", RuntimeWarning, stacklevel=3
                )


def wait_for_any(save: Save, timeout: float | None = None) -> None:
    """Waits until `save` has ended in all tiers. Raises the error of the save if no tier has the step, and
    TimeoutError."""
    try:
        save.wait(timeout)
    except Exception:
        if "durable" not in save.status.values():
            raise


def _heal(opened: _core.Checkpoint) -> None:
    try:
        opened.heal()
    except (OSError, NotImplementedError) as error:  # this restore is complete; the next one reads the other tier again
        warnings.warn(f"checkpoint: a damaged file stays as it is: {error}", RuntimeWarning, stacklevel=1)


def _report_tier(save: Save, tier: str, on_saved: OnSaved) -> None:
    failure: Exception | None = None
    try:
        save.wait(tier=tier)
    except Exception as error:  # passed on to the caller
        failure = error
    on_saved(save.step, tier, failure)


def _make_probe(folder: str) -> str:
    """Creates a file in `folder` and returns its name. If that fails, no file has the returned name."""
    name = f".millrace-{secrets.token_hex(8)}"
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).touch()
    except OSError:
        pass  # no rank sees the file; the first save reports what is wrong with the folder
    return name


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disables garbage collection while a snapshot is taken. The snapshot's thousands of small objects would trigger
    collections that took half of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
