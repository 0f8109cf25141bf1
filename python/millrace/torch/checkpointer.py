# SPDX-License-Identifier: Apache-2.0
"""Asynchronous checkpoints of a training state: modules, optimizers, loaders, plain data; by name, without pickle."""

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

# A save under way:
# .step, .bytes (of this rank's file), .done, .status ({tier: "pending", "durable", "failed" or "skipped"}), and
# .wait(timeout=None, tier=None), which returns when the step is committed and durable in that tier (default: in all),
# and raises its error, or TimeoutError after `timeout` seconds; `tier` may be the bucket's side of a link
# (millrace.link) that a tier lies in, which then has all files of the step; and .wait_removals(), which returns when the
# removal of older steps has ended, too. Dropping the object does not stop the save.
Save = _core.PendingSave


@dataclass(frozen=True)
class Tier:
    """A folder of checkpoints nearer to the training than the root, for Checkpointer(tiers=[...]).

    url: a folder, or a URL of one.
    keep_last, keep_every, keep_best, keep_days, quota_bytes: as in Checkpointer, for this tier. None: the
        Checkpointer's value. quota_bytes is this folder's own; 0: no quota.
    save_every: only steps divisible by it come here; 0: all. Not for the nearest tier, which takes every save.
    """

    url: str | os.PathLike[str]
    keep_last: int | None = None
    keep_every: int | None = None
    save_every: int = 0
    keep_best: int | None = None
    keep_days: float | None = None
    quota_bytes: int = 0


# Called with (step, tier, error) on a background thread when a save has ended in a tier; error is None when it is
# durable there.
OnSaved = Callable[[int, str, Exception | None], object]

# Retention as the Saver takes it: last, every, best, monitor, higher is better, seconds, bytes.
_KeepEntry = tuple[int, int, int, str, bool, float, int]


class Checkpointer:
    """Saves and restores a training state below `root`; every rank of the job constructs one, at the same point.

    root: a folder, or a URL of one.
    keep_last, keep_every, keep_best, keep_days: a committed step stays when one of these rules keeps it: the newest
        `keep_last`; those divisible by `keep_every`; the `keep_best` steps with the best `monitor` among the metrics
        given to save(), by `mode`: "min" or "max"; those that are younger than `keep_days`. The newest always stays.
        Without keep_last, keep_best and keep_days all steps stay. A step is removed only when a newer one is durable.
    quota_bytes: what all committed steps may take. Above it, kept steps are removed too: first the oldest, then those
        of keep_every, then those of keep_best, worst first. The step that is being written takes space beyond it.
        0: no quota.
    rank, world_size: default to torch.distributed's when it is initialised, else to RANK and WORLD_SIZE, else 0 of 1.
    process_group: the ranks that save together; default: all.
    threads: number of threads that save; 0: automatic.
    memory_bytes: what the saves of all ranks of this node may take of the host's memory together, pinned or not; 0: as
        much as the ranks' files. Each rank has an equal share, by LOCAL_WORLD_SIZE or SLURM_NTASKS_PER_NODE; with tiers
        a quarter of it is for the copies between them. A state larger than the rank's share is written through that
        share while training waits, until the nearest tier has it; the log says so. Memory of saves that hang in storage
        counts too.
    reserve: memory for the snapshot, taken now and touched in the background, so that the first save stops training no
        longer than the later ones: the bytes of this rank's file, or a state as given to save() whose tensors are
        there already (an optimizer has none before its first step: AdamW's are 2 x 4 bytes a parameter). 0: the first
        save takes it, and touching 1 GB of fresh memory can take a second.
    commit_timeout: seconds that a save waits for the other ranks before it fails, naming them. A rank that fails tells
        the others, who then end at once with its cause. save() waits no longer than the larger of this and tier_timeout
        for the save before it, which is then given up: TimeoutError.
    tiers: folders nearer than `root`, nearest first: paths, URLs or Tier. A save is written to the first, and from its
        files to the others in the background. Each commits by itself. A tier that fails costs a warning; the save has
        failed when no tier has the step. restore() reads each part from the nearest good copy, and then writes files
        and manifests that were damaged in a tier anew. A path that is a different folder on each node, such as a local
        NVMe, is detected.
    tier_timeout: seconds that a tier may make no progress, for example when its file server is gone. It is then given
        up for that save, and for later ones until it answers. A restore goes on with the next tier. If the tier cannot
        be listed, restore() raises TimeoutError, because the tier may have a newer step.
    save_every: with tiers: only steps divisible by it come to `root`; 0: all.
    unchanged: what happens to a tensor whose bytes equal those in the previous save, such as a frozen backbone or the
        base of a LoRA. "write": it is written again. "refer": the step refers to the file of the earlier step that has
        it, which stays as long as a step refers to it, regardless of the retention rules. The first save of a run
        writes all; so does one after a tier has failed. Builds of Millrace before this option refuse such steps.
    new_run: this process may save in a folder that has steps without having restored one. It starts another run there:
        the steps of the former one are left behind, and no restore chooses them once this run has saved.
    on_saved: called with (step, tier, error) on a background thread when a save has ended in a tier.

    With several ranks, the constructor, restore(), latest_step() and steps() are collective: every rank calls them.
    save() is not; it must only be called by all ranks with the same step.

    Not thread-safe. Owns threads: close() it or use it as a context manager. Pickling carries the arguments only.
    Raises ValueError (rank and world size, torch.distributed not initialised), OSError, MemoryError (reserve).
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
        # Where checkpoints are, nearest first.
        self._places = Places(
            [*(os.fspath(tier.url) for tier in self._tiers), self._root], self._options["tier_timeout"]
        )
        self._attempt, self._names = self._group.from_rank0(self._rank, self._make_attempt)
        self._restored: lines.Line | None = None  # what this object has restored
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
        self._healer: threading.Thread | None = None  # mends what the last restore found damaged
        self._opened: _core.Checkpoint | None = None  # rank 0's, on the way from the listing to the restore
        self._in_use: _core.Checkpoint | None = None  # what a restore has just read
        self._copies: ImageCopies = CudaImageCopies()
        self._deferral = Deferral()
        self._last: Save | None = None
        self._stalls = [0, 0.0, 0.0]  # saves, seconds in all, seconds of the last one

    def _make_attempt(self) -> tuple[str, lines.Names]:
        """An attempt newer than every attempt in every tier, and the names that the tiers have."""
        names = self._places.ask_names()
        restarts = [restart_of(attempt) for _, _, attempts in names for attempt in attempts]
        return f"r{max(restarts, default=-1) + 1:04}-{secrets.token_hex(4)}", names

    def _tier_entry(self, tier: Tier) -> tuple[str, _KeepEntry, int, bool]:
        url = os.fspath(tier.url)
        return url, self._keep_entry(tier), tier.save_every, self._is_node_local(url)

    def _keep_entry(self, tier: Tier) -> _KeepEntry:
        """The retention rules of a tier; unset ones are the Checkpointer's."""
        last, every, best, days = (
            getattr(self._keep if getattr(tier, name) is None else tier, name)
            for name in ("keep_last", "keep_every", "keep_best", "keep_days")
        )
        if not 0 <= days < math.inf:
            raise ValueError(f"keep_days is {days}, not a number of days")
        return last, every, best, *self._best_by, days * 86400, tier.quota_bytes

    def _is_node_local(self, url: str) -> bool:
        """Whether some rank does not see a file that rank 0 creates there."""
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
        shown that nothing else changes these tensors. If something does, such as weight averaging, all saves wait. If
        something begins to do so later, the save under way is not committed, with a warning. Changes through `.data`
        and in replayed CUDA graphs are not seen: call `save.wait()` before them, and before a graph is captured.

        step: a number greater than that of the save before.
        state: a dict of
            objects with state_dict() and load_state_dict(): modules (the wrappers of DistributedDataParallel and
                torch.compile are looked through), optimizers, schedulers, millrace.Loader;
            tensors (also DTensor, of which each rank writes its shard) and NumPy arrays;
            None, bool, int, float, str, bytes, NumPy scalars, torch.dtype, and dict, list and tuple of all these;
            PerRank(value), for values that differ between ranks.
        metrics: what was measured at this step, by name, such as {"val_loss": 2.1}, for keep_best. Rank 0's count.
            Values that are not finite are left out.
        owners: the modules and optimizers behind plain dicts in `state`, such as model.state_dict(). Without them, a
            save of such a dict waits for its copies.
        With several ranks all other values count as equal on all of them: one rank writes each tensor, rank 0 the
        plain data.

        Waits while the save before is under way, and raises its error when wait() was not called; with tiers, only
        until the snapshot of the save before is free, and while three saves are unfinished in some tier. Raises TypeError
        naming the path of a value that cannot be stored (nothing is ever pickled), ValueError (the step, names),
        FileExistsError (the step was committed by a newer attempt, or the folder has steps of which this process has
        restored none: see new_run), OSError (no space), MemoryError. With several ranks the others then end with the
        cause, and the step is given up on all of them.

        A run that has gone back to an earlier step leaves the later ones behind: a RuntimeWarning names them once.
        """
        start = time.perf_counter()
        self._continue_line(step)
        try:
            with _no_garbage_collection():
                self._last = self._save(step, state, metrics or {}, owners)
        except FileExistsError:  # the other ranks find that step, too
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
        """Tells the saver what the first save after the start or a restore continues; later ones continue each other.
        Raises FileExistsError."""
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
        """Runs `call` on a thread; close() waits for it."""
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
        # What is on a device, or does not lie in order, goes from there into the memory of the save.
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
        """Brings `state`, a dict as given to save(), to what was saved. Returns the step, None when there is none.

        step: which step; default: the newest step of the newest attempt, or if that is damaged, the next older one that
            it continues. Steps that a run left behind when it went back are never chosen. A damaged step is skipped
            with a warning that names it: wrong bytes, files that are missing, that the device cannot read (EIO) or that
            this user may not read.
        strict: a name that only `state` or only the checkpoint has raises ValueError, listing all of them; otherwise
            such names are left alone, and an entry of `state` of which nothing was restored is a RuntimeWarning.
        only: these entries of `state`, as ("model",), or names in modules and dicts of it, as ("model.embed",
            "model.layers.*.norm.weight"): the rest stays as it is, and the rest of the checkpoint is ignored. `strict`
            applies to what is named, and each name must match something.
        share: what several ranks hold alike, as replicas of data parallelism do, is read by one of them, and the others
            get it through torch.distributed, on the CPU. Each rank reads what it has written, so with tiers of single
            nodes nothing comes from farther away. Default: True where the checkpoints are in a bucket, False on a file
            system, where the nodes' page caches share the reads, often faster.

        Tensors, arrays, dicts and lists are filled in place; other plain values are put into the dict or list around
        them; objects get load_state_dict(). Dtypes are converted as torch's load_state_dict does: values that do not
        fit a narrower one wrap around or become infinite, and one RuntimeWarning names their tensors. Shapes must be equal,
        but for the _extra_state of modules, which set_extra_state() gets as it was saved. The world size may be another one. PerRank values are those of the rank of the same number; where the
        checkpoint lacks that rank they stay, with a warning. With several ranks, all of them restore the same step.

        Raises ValueError (names, shapes, two stored tensors for one live one), FileNotFoundError (no such step),
        millrace.CorruptionError (the given step, or every step, is damaged), PermissionError and OSError (the given
        step cannot be read), ConnectionError and TimeoutError (a server does not answer), NotImplementedError (the
        newest step was written by a newer version). After an error the values in `state` are unspecified.
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
            # Listed anew after each failure: what another process removed or replaced meanwhile is no damage.
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
        """Later saves continue the commit that was restored. A restore of another one than this object saved last
        begins a new attempt, which may save lower steps than the one before."""
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
        except Exception as error:  # the run has gone back to a step that is whole
            step = "?" if last is None else last.step
            warnings.warn(
                f"checkpoint {self._root}: the save of step {step} failed: {error}", RuntimeWarning, stacklevel=4
            )
        self._open()

    def latest_step(self) -> int | None:
        """The newest step of the newest line whose manifest is good; None when there is none. Warns of steps that a newer
        version of Millrace wrote. Raises OSError."""
        return max(self.steps(), default=None)

    def steps(self) -> list[int]:
        """Committed steps of the newest line, ascending, less those whose manifest is damaged: what restore() chooses from.
        Steps that the line left behind are not among them; `millrace ckpt ls` shows all. Warns of steps that a newer
        version of Millrace wrote, which are left out too. Raises OSError."""
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
        """The save begun last; None before the first and after close()."""
        return self._last

    def stats(self) -> dict[str, Any]:
        """ "saves", "stall_seconds" (time that training stood in save(), in all), "last_stall_seconds", and the
        counters of the writing: "write_bytes", "write_seconds", "referred_bytes", of tensors that were not written
        again (unchanged="refer"), and "peak_memory_bytes", the most memory that this rank's saves have taken at once.
        """
        saves, seconds, last = self._stalls
        return {**self._saver.metrics(), "saves": saves, "stall_seconds": seconds, "last_stall_seconds": last}

    def close(self) -> None:
        """Waits for all tiers of the saves under way and for their removals, and stops the threads. Raises what the
        last save raised or would have: with tiers, when no tier has it."""
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
        # A process group cannot be pickled: the copy uses the default one.
        kept = ("_root", "_rank", "_world_size", "_threads", "_options", "_tiers", "_keep", "_best_by", "_on_saved",
                "_new_run")  # fmt: skip
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _process_group=None)
        self._open()

    def _names_to_write(self, encoded: tree.Encoded) -> list[str]:
        """This rank's share of the tensors that it holds together with other ranks, and all that only it has."""
        prefix = f"rank{self._rank}/"
        mine: set[str] = set()
        shared: dict[tuple[int, ...] | None, list[str]] = {}  # by the ranks that hold the same box
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
        """About what this rank's file takes for `state`: its tensors, and a kilobyte of header for each."""
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
        """None when `state` is restored on all ranks; else what is damaged. With an attempt in `commit` damage is
        returned, since another step may be tried; without, it is raised."""
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
        """None when `body()` succeeded on all ranks; else as _restore_step."""
        error: Exception | None = None
        try:
            with _no_garbage_collection():
                body()
        except Exception as caught:  # the other ranks must hear of it before it is raised
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
    """Waits until `save` has ended in all tiers. Raises what went wrong when no tier has the step, and TimeoutError."""
    try:
        save.wait(timeout)
    except Exception:
        if "durable" not in save.status.values():
            raise


def _heal(opened: _core.Checkpoint) -> None:
    try:
        opened.heal()
    except (OSError, NotImplementedError) as error:  # the restore is done, and the next one reads the other tier again
        warnings.warn(f"checkpoint: a damaged file stays as it is: {error}", RuntimeWarning, stacklevel=1)


def _report_tier(save: Save, tier: str, on_saved: OnSaved) -> None:
    failure: Exception | None = None
    try:
        save.wait(tier=tier)
    except Exception as error:  # handed to the caller
        failure = error
    on_saved(save.step, tier, failure)


def _make_probe(folder: str) -> str:
    """Creates a file in `folder` and returns its name. If that fails, no file has the name."""
    name = f".millrace-{secrets.token_hex(8)}"
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).touch()
    except OSError:
        pass  # nobody sees it, then; the first save says what is wrong with the folder
    return name


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A snapshot's thousands of small objects would trigger collections that took half of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
