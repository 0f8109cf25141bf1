# SPDX-License-Identifier: Apache-2.0
"""Measures how long training waited for data, and what limits the loader."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

# Shares of time above which a report names a cause.
_WAITS = 0.01  # below this share, training does not wait for data
_BUSY = 0.7  # above this share of busy time, the threads are the limit


@dataclass(frozen=True)
class LoaderReport:
    """The result of `loader.report()`: measurements since the first batch. Times of stages are summed over threads."""

    seconds: float  #: time since the first batch was returned
    waited_seconds: float  #: the part of this time in next()
    batches: int  #: batches after the first batch
    tokens: int
    read_bytes: int
    read_seconds: float  #: from the request to storage until the bytes arrived
    decode_seconds: float
    collate_seconds: float
    threads: int
    cpus: int  #: CPUs that this process may use
    prefetch_depth: int  #: batches that the loader aims to have ready
    ready_batches: int  #: batches that were ready when the last batch was taken
    cache_hit_bytes: int
    cache_miss_bytes: int

    @property
    def wait_share(self) -> float:
        """The part of the time that training waited for data, 0 to 1."""
        return self.waited_seconds / self.seconds if self.seconds > 0 else 0.0

    @property
    def busy_share(self) -> float:
        """The part of the time that the loader's threads worked, 0 to 1."""
        worked = self.decode_seconds + self.collate_seconds
        return min(worked / (self.threads * self.seconds), 1.0) if self.seconds > 0 else 0.0

    @property
    def limit(self) -> Literal["training", "decode", "collate", "read"]:
        """What a step waits for: training itself, the loader's threads (decode or collate), or the storage (read)."""
        if self.wait_share < _WAITS:
            return "training"
        if self.busy_share < _BUSY:
            return "read"
        return "decode" if self.decode_seconds >= self.collate_seconds else "collate"

    @property
    def advice(self) -> str:
        """A measure that would help; empty if training does not wait."""
        if self.limit == "training":
            return ""
        if self.limit == "read":
            if self.cache_hit_bytes + self.cache_miss_bytes == 0:
                return "a faster storage, cache=, or more memory_bytes to read further ahead would help"
            return "the cache fills, or is too small; more memory_bytes to read further ahead may help"
        # The threads must keep up with the time that training takes without waiting.
        needed = math.ceil(self.threads * self.seconds / max(self.seconds - self.waited_seconds, 1e-9))
        if needed <= self.cpus:
            return f"{needed - self.threads or 1} more threads would help (num_threads={max(needed, self.threads + 1)})"
        return f"it needs about {needed} threads, and this process may use {self.cpus} CPUs"

    def __str__(self) -> str:
        """Returns one sentence: "training waited 3.1 % for data; the limit is decode; 4 more threads would help"."""
        if self.batches == 0:
            return "no batch after the first one yet"
        waited = f"training waited {self.wait_share:.1%} for data".replace("%", " %")
        if self.limit == "training":
            return f"{waited}; the loader is not the limit"
        return f"{waited}; the limit is {self.limit}; {self.advice}"

    def scalars(self, prefix: str = "loader/") -> dict[str, float]:
        """Returns the numbers by name, in the form that W&B and `mr.Run.log` accept: `wandb.log(report.scalars())`."""
        values: dict[str, float] = asdict(self) | {"wait_share": self.wait_share, "busy_share": self.busy_share}
        return {prefix + name: value for name, value in values.items()}

    def log_to(self, writer: Any, step: int) -> None:
        """Writes the numbers to a TensorBoard `SummaryWriter`, or to a run of W&B (anything with log(dict, step=))."""
        if hasattr(writer, "add_scalar"):
            for name, value in self.scalars().items():
                writer.add_scalar(name, value, step)
        else:
            writer.log(self.scalars(), step=step)

    def prometheus(self, labels: Mapping[str, str] | None = None) -> str:
        """Returns the numbers in Prometheus' text format, for example for the textfile folder of a node_exporter."""
        shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted((labels or {}).items()))
        lines = []
        for name, value in self.scalars("millrace_loader_").items():
            lines += [f"# TYPE {name} gauge", f"{name}{{{shown}}} {value:g}" if shown else f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Clock:
    """Measures how long the consumer waited for batches after the first one. For one consumer at a time."""

    def __init__(self) -> None:
        self._begun: float | None = None
        self._before: dict[str, float] = {}
        self._waited = 0.0
        self._batches = 0

    def given(self, asked: float, now: float, stats: Mapping[str, float] | None) -> None:
        """Records that a batch was requested at `asked` and returned at `now`. `stats`: the reader's, at the first
        batch."""
        if self._begun is None:
            self._begun, self._before = now, dict(stats or {})
            return
        self._waited += now - asked
        self._batches += 1

    @property
    def is_running(self) -> bool:
        return self._begun is not None

    def report(self, now: float, stats: Mapping[str, float], threads: int) -> LoaderReport:
        def since(name: str) -> float:
            return stats[name] - self._before.get(name, 0.0)

        return LoaderReport(
            seconds=0.0 if self._begun is None else now - self._begun,
            waited_seconds=self._waited,
            batches=self._batches,
            tokens=int(since("tokens")),
            read_bytes=int(since("read_bytes")),
            read_seconds=since("read_seconds"),
            decode_seconds=since("decode_seconds"),
            collate_seconds=since("collate_seconds"),
            threads=threads,
            cpus=len(os.sched_getaffinity(0)),
            prefetch_depth=int(stats["prefetch_depth"]),
            ready_batches=int(stats["ready_batches"]),
            cache_hit_bytes=int(since("cache_hit_bytes")),
            cache_miss_bytes=int(since("cache_miss_bytes")),
        )
