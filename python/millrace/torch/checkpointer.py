# SPDX-License-Identifier: Apache-2.0
"""Asynchronous checkpoints of a training state: modules, optimizers, loaders, plain data; by name, without pickle."""

from __future__ import annotations

import gc
import os
import time
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import millrace
from millrace import _core

from . import state as tree
from .dist import Group, resolve_rank
from .restore import Restorer
from .tensors import Staging, address

# A save on its way: .step, .bytes (of this rank's file), .done, and .wait(timeout=None), which returns when the step is
# committed and durable, and raises what went wrong, or TimeoutError after `timeout` seconds. Dropping it stops nothing.
Save = _core.PendingSave

# What a damaged or half-deleted step answers; the step before it may be good.
_DAMAGE = (millrace.CorruptionError, FileNotFoundError)


class Checkpointer:
    """Saves and restores a training state below `root`; every rank of the job makes one, at the same point.

    root: a folder, or a URL of one.
    keep_last, keep_every: the newest `keep_last` committed steps stay (0: all), and those divisible by `keep_every`.
    rank, world_size: default to torch.distributed's when it is initialised, else to RANK and WORLD_SIZE, else 0 of 1.
    process_group: the ranks that save together; default: all.
    threads, memory_bytes: of the saving; 0 chooses.
    commit_timeout: seconds that a save waits for the other ranks before it fails, naming them.

    With several ranks, the constructor, restore(), latest_step() and steps() are collective: every rank calls them.
    save() is not; it must only be called by all ranks with the same step.

    Not thread-safe. Owns threads: close() it or use it as a context manager. Pickling carries the arguments only.
    Raises ValueError (rank and world size, torch.distributed not initialised), OSError.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        keep_last: int = 0,
        keep_every: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        process_group: Any = None,
        threads: int = 0,
        memory_bytes: int = 0,
        commit_timeout: float = 600.0,
    ) -> None:
        self._root = os.fspath(root)
        self._rank, self._world_size = resolve_rank(rank, world_size, process_group)
        self._process_group = process_group
        self._threads = threads
        self._options: dict[str, Any] = dict(
            threads=threads,
            memory_bytes=memory_bytes,
            commit_timeout=commit_timeout,
            keep_last=keep_last,
            keep_every=keep_every,
        )
        self._open()

    def _open(self) -> None:
        self._group = Group(self._world_size, self._process_group)
        self._saver = _core.Saver(
            self._root,
            attempt=self._group.from_rank0(self._rank, lambda: _core.make_attempt(self._root)),
            rank=self._rank,
            world_size=self._world_size,
            **self._options,
        )
        self._staging = Staging()
        self._last: Save | None = None
        self._stalls = [0, 0.0, 0.0]  # saves, seconds in all, seconds of the last one

    def save(self, step: int, state: dict[str, Any]) -> Save:
        """Takes a snapshot of `state` and returns; what follows (writing, hashing, the commit) runs behind training,
        and everything in `state` may change at once.

        step: a number greater than that of the save before.
        state: a dict of
            objects with state_dict() and load_state_dict(): modules (the wrappers of DistributedDataParallel and
                torch.compile are looked through), optimizers, schedulers, millrace.Loader;
            tensors (also DTensor, of which each rank writes its shard) and NumPy arrays;
            None, bool, int, float, str, bytes, NumPy scalars, torch.dtype, and dict, list and tuple of all these;
            PerRank(value), for what differs between ranks.
        With several ranks everything else is taken to be equal on all of them: each tensor is written by one rank, the
        plain data by rank 0.

        Waits while the save before is still under way, and raises its error when nobody waited for it. Raises TypeError
        naming the path of a value that cannot be stored (nothing is ever pickled), ValueError (the step, names),
        FileExistsError (the step was committed by a newer attempt), OSError (no space), MemoryError.
        """
        start = time.perf_counter()
        with _no_garbage_collection():
            self._last = self._save(step, tree.encode(state, self._rank))
        seconds = time.perf_counter() - start
        self._stalls = [self._stalls[0] + 1, self._stalls[1] + seconds, seconds]
        return self._last

    def _save(self, step: int, encoded: tree.Encoded) -> Save:
        names = self._names_to_write(encoded)
        boxes = [encoded.boxes[name] for name in names]
        dense = self._staging.to_cpu((name, box.local) for name, box in zip(names, boxes, strict=True))
        tensors = [
            (name, box.dtype, list(box.global_shape), list(box.offset), list(box.shape), address(value))
            for name, box, value in zip(names, boxes, dense, strict=True)
        ]
        document = tree.dump(encoded.state) if self._rank == 0 else "null"
        rank_document = tree.dump({"$dict": encoded.rank_state}) if encoded.rank_state else "null"
        return self._saver.save(step, tensors, document, rank_document)

    def restore(
        self,
        state: dict[str, Any],
        step: int | None = None,
        *,
        strict: bool = True,
        only: str | Collection[str] | None = None,
    ) -> int | None:
        """Brings `state`, a dict as given to save(), to what was saved. Returns the step, None when there is none.

        step: which one; default: the newest good one. A damaged step is skipped with a warning that names it.
        strict: a name that only `state` or only the checkpoint has raises ValueError, listing all of them; otherwise
            such names are left alone, and an entry of `state` of which nothing was restored is a RuntimeWarning.
        only: these entries of `state`, as ("model",): the others stay as they are, and what else the checkpoint has is
            neither read nor missed. strict holds inside of them.

        Tensors, arrays, dicts and lists are filled in place; other plain values are put into the dict or list around
        them; objects get load_state_dict(). Dtypes are converted as torch's load_state_dict does, shapes must be
        equal. The world size may be another one. PerRank values are those of the rank of the same number; where the
        checkpoint has no such rank they stay, with a warning. With several ranks, all of them restore the same step.

        Raises ValueError (names, shapes), FileNotFoundError (no such step), millrace.CorruptionError (the given step,
        or every step, is damaged), NotImplementedError (written by a newer version). After an error the values in
        `state` are unspecified.
        """
        only = (only,) if isinstance(only, str) else only
        failures: list[str] = []
        if step is not None:
            steps = [step]
        else:
            steps, failures = self._group.from_rank0(self._rank, self._candidates)
            self._warn(failures)
        for candidate in steps:
            failure = self._restore_step(state, candidate, strict, only, may_skip=step is None)
            if failure is None:
                return candidate
            failures.append(failure)
            self._warn([failure])
        if failures:
            raise millrace.CorruptionError(f"no checkpoint in {self._root} is whole: {'; '.join(failures)}")
        return None

    def latest_step(self) -> int | None:
        """The newest step whose manifest is good; None when there is none. Raises OSError."""
        return max(self.steps(), default=None)

    def steps(self) -> list[int]:
        """Committed steps, ascending, less those whose manifest is damaged. Raises OSError."""
        return self._group.from_rank0(self._rank, self._candidates)[0][::-1]

    def stats(self) -> dict[str, Any]:
        """ "saves", "stall_seconds" (time that training stood in save(), in all), "last_stall_seconds", and the
        counters of
        the writing: "write_bytes", "write_seconds"."""
        saves, seconds, last = self._stalls
        return {**self._saver.metrics(), "saves": saves, "stall_seconds": seconds, "last_stall_seconds": last}

    def close(self) -> None:
        """Waits for the save under way and stops the threads. Raises what the last save raised or would have."""
        last, self._last = self._last, None
        try:
            if last is not None:
                last.wait()
        finally:
            self._saver.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is None:
            self.close()
        else:
            self._saver.close()

    def __getstate__(self) -> dict[str, Any]:
        # A process group cannot be pickled: the copy uses the default one.
        kept = ("_root", "_rank", "_world_size", "_threads", "_options")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _process_group=None)
        self._open()

    def _names_to_write(self, encoded: tree.Encoded) -> list[str]:
        """Of the tensors that every rank holds whole, this rank's share; and all that only this rank has."""
        prefix = f"rank{self._rank}/"
        shared = [
            name for name in sorted(encoded.boxes) if encoded.boxes[name].writes is None and not name.startswith(prefix)
        ]
        writers = _core.assign_writers([encoded.boxes[name].nbytes for name in shared], self._world_size)
        mine = {name for name, writer in zip(shared, writers, strict=True) if writer == self._rank}
        return [n for n, box in encoded.boxes.items() if box.writes or n in mine or n.startswith(prefix)]

    def _candidates(self) -> tuple[list[int], list[str]]:
        """Good steps, the newest first, and what is wrong with the others."""
        found = _core.list_steps(self._root)
        good = [info["step"] for info in reversed(found) if info["damage"] is None]
        return good, [f"step {info['step']}: {info['damage']}" for info in found if info["damage"] is not None]

    def _restore_step(
        self, state: dict[str, Any], step: int, strict: bool, only: Collection[str] | None, may_skip: bool
    ) -> str | None:
        """None when `state` is restored on all ranks; else what is damaged, when another step may be tried."""
        error: Exception | None = None
        try:
            restorer = Restorer(_core.Checkpoint(self._root, step), self._rank, strict)
            restorer.plan(state, only)
            restorer.load(self._threads)
        except Exception as caught:  # the other ranks must hear of it before it is raised
            error = caught
        answers = self._group.gather(None if error is None else (isinstance(error, _DAMAGE), f"step {step}: {error}"))
        failed = [(rank, *answer) for rank, answer in enumerate(answers) if answer is not None]
        if not failed:
            restorer.finish()
            return None
        rank, _, text = failed[0]
        if may_skip and all(damage for _, damage, _ in failed):
            return text
        raise error if error is not None else RuntimeError(f"restore failed on rank {rank}: {text}")

    def _warn(self, failures: list[str]) -> None:
        if self._rank == 0:
            for failure in failures:
                warnings.warn(
                    f"checkpoint {self._root}: {failure}; trying the step before", RuntimeWarning, stacklevel=3
                )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A snapshot makes thousands of small objects; the collections they set off took half of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
