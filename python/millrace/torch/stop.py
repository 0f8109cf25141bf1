# SPDX-License-Identifier: Apache-2.0
"""Saves when the scheduler signals that the job will end."""

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
    """Receives the signals that come before the end of a job, and saves in the remaining time:

        with mr.torch.StopSignals(grace=240) as stop:
            while step < steps:
                ...                                # one step
                step += 1
                if stop.requested():
                    sys.exit(stop.save(checkpointer, step, state))

    grace: seconds from the signal until the job is killed: the time of sbatch --signal, minus the time that the script
        needs.
    signals: the signals to handle. A second signal changes nothing, so srun and torchrun may both send it.
    process_group: the ranks that stop together; default: all.

    `with` sets the handlers. The end of the block restores the former handlers. If a signal was received, the end of
    the block ignores the signals instead: a second signal would kill the process before it ends with its exit status.
    Use it on the main thread. Raises ValueError (grace, another thread).
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
        """The signal that this rank received; None before a signal."""
        return self._heard

    def remaining(self) -> float:
        """Returns the seconds of grace that are left. Before a signal, this is the whole grace."""
        return self._grace if self._heard is None else max(self._since + self._grace - time.monotonic(), 0.0)

    def requested(self) -> bool:
        """Returns whether any rank has received a signal. The answer is the same on all ranks. With several ranks, this
        makes one small all-reduce, so every rank must call it at the same steps: at each step, or at every n-th step if
        steps are short."""
        if not initialized() or dist.get_world_size(self._process_group) == 1:
            return self._heard is not None
        on_gpu = dist.get_backend(self._process_group) == "nccl"
        flag = torch.tensor([self._heard is not None], dtype=torch.int32, device="cuda" if on_gpu else "cpu")
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._process_group)
        if flag.item() and self._heard is None:  # another rank has a signal; that of this rank will follow
            self._hear(self._signals[0], None)
        return bool(flag.item())

    def save(self, checkpointer: Checkpointer, step: int, state: dict[str, Any]) -> int:
        """Saves `state` as `step`, after the save in progress, and returns the exit status. Raises the errors of
        Checkpointer.save().

        The status is mr.EXIT_REQUEUE (75) if the step is durable, and 1 if the grace ends first; the newest durable
        step is then an earlier one. With tiers, it is enough that one tier has the step. The logger "millrace" says
        which step is durable and, with tiers, which tiers have it.
        """
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
