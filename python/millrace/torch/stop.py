# SPDX-License-Identifier: Apache-2.0
"""Saving when the scheduler says that the job will end."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Collection
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

import millrace
from millrace.run import tell_progress

from .checkpointer import Checkpointer, wait_for_any
from .dist import initialized

_logger = logging.getLogger("millrace")


class StopSignals:
    """Hears the signals that come before the end of a job, and saves in the time that is left:

        with mr.torch.StopSignals(grace=240) as stop:
            while step < steps:
                ...                                # one step
                step += 1
                if stop.requested():
                    sys.exit(stop.save(checkpointer, step, state))

    grace: seconds from the signal until the job is killed: what sbatch --signal gives, less what the script needs.
    signals: which ones; a second signal changes nothing, so srun and torchrun may both send it.
    process_group: the ranks that stop together; default: all.

    `with` sets the handlers. Its end restores the former ones, or ignores the signals when one was heard: a second one
    would kill the process on its way out, and its exit status with it. For the main thread. Raises ValueError (grace,
    another thread).
    """

    def __init__(
        self,
        grace: float = 60.0,
        *,
        signals: Collection[signal.Signals] = (signal.SIGTERM, signal.SIGUSR1),
        process_group: Any = None,
    ) -> None:
        if not grace > 0:
            raise ValueError(f"grace is {grace} seconds: it must be more than 0")
        self._grace = grace
        self._signals = tuple(signals)
        self._process_group = process_group
        self._former: dict[signal.Signals, Any] = {}
        self._heard: signal.Signals | None = None
        self._since = 0.0

    def __enter__(self) -> StopSignals:
        for number in self._signals:
            self._former[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._former.items():  # Python's own handlers end before the process: only SIG_IGN stays
            signal.signal(number, handler if self._heard is None else signal.SIG_IGN)
        self._former = {}

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._heard is None:
            self._heard, self._since = signal.Signals(number), time.monotonic()

    @property
    def heard(self) -> signal.Signals | None:
        """The signal that this rank got; None so far."""
        return self._heard

    def remaining(self) -> float:
        """Seconds of grace that are left; all of it before a signal."""
        return self._grace if self._heard is None else max(self._since + self._grace - time.monotonic(), 0.0)

    def requested(self) -> bool:
        """Whether any rank has heard a signal: the same answer on all of them. With several ranks one small all-reduce,
        so every rank calls it at the same steps: at each, or at every n-th where steps are short."""
        if not initialized() or dist.get_world_size(self._process_group) == 1:
            return self._heard is not None
        on_gpu = dist.get_backend(self._process_group) == "nccl"
        flag = torch.tensor([self._heard is not None], dtype=torch.int32, device="cuda" if on_gpu else "cpu")
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._process_group)
        if flag.item() and self._heard is None:  # the signal of this rank is on its way
            self._hear(self._signals[0], None)
        return bool(flag.item())

    def save(self, checkpointer: Checkpointer, step: int, state: dict[str, Any]) -> int:
        """Saves `state` as `step`, after the save under way, and returns the exit status: mr.EXIT_REQUEUE (75) when the
        step is durable, 1 when the grace ends before; the newest durable step is then an earlier one. With tiers, one
        that has the step is enough, and the line says which do. Says which on the logger "millrace". Raises what save()
        raises."""
        start = time.monotonic()
        name = "stop" if self._heard is None else self._heard.name
        try:
            before = checkpointer.last_save
            if before is not None:
                wait_for_any(before, self.remaining())
            saved = checkpointer.save(step, state)
            wait_for_any(saved, self.remaining())
        except TimeoutError as error:
            _logger.error("%s: step %d was not saved within %g s: %s", name, step, self._grace, error)
            return 1
        if not initialized() or dist.get_rank(self._process_group) == 0:
            tell_progress(step)
        seconds = time.monotonic() - start
        where = ", ".join(tier for tier, status in saved.status.items() if status == "durable")
        _logger.warning(
            "%s: step %d is saved in %s, in %.1f s of %g s; run the job again", name, step, where, seconds, self._grace
        )
        return millrace.EXIT_REQUEUE
