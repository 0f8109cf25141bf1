# SPDX-License-Identifier: Apache-2.0
"""Copies committed steps of a StorageWriter from the nearest tier to the other tiers, in the background."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

from millrace import _core

#: The retention rules: last, every, best, metric, whether a greater metric is better, seconds, bytes of the quota.
Keep = tuple[int, int, int, str, bool, float, int]


class Copies:
    """The copies of one rank. Each rank copies its own part to each tier. Rank 0 commits there when all ranks have done
    so."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._threads: list[threading.Thread] = []
        self._failures: list[tuple[str, Exception]] = []

    def start(self, step: int, attempt: str, rank: int, sources: list[str], target: str, keep: Keep) -> None:
        """Starts a copy from the nearest of `sources` when `attempt` has committed the step there. A program ends only
        after the copy."""

        def copy() -> None:
            try:
                _core.copy_step(sources, target, step, rank, attempt, keep, self._timeout)
            except Exception as error:  # the nearest tier has the step; wait() raises the error
                self._failures.append((target, error))
                warnings.warn(f"checkpoint: step {step} is not in {target}: {error}", RuntimeWarning, stacklevel=1)

        self._run(copy)

    def _run(self, copy: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=copy, name="millrace-copy"))
        self._threads[-1].start()

    def join(self) -> list[tuple[str, Exception]]:
        """Waits for all copies. Returns the errors since the last call."""
        for thread in self._threads:
            thread.join()
        failures, self._threads, self._failures = self._failures, [], []
        return failures
