# SPDX-License-Identifier: Apache-2.0
"""How long training waited for data, and what limits the loader."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

# Shares of time above which a report names a cause.
_WAITS = 0.01  # below it, training does not wait for data
_BUSY = 0.7  # of the threads: above it they are the limit


@dataclass(frozen=True)
class LoaderReport:
    """What `loader.report()` measured since the first batch. Times of stages are summed over threads."""

    seconds: float  #: since the first batch was given
    waited_seconds: float  #: of these, in next()
    batches: int  #: after the first one
    tokens: int
    read_bytes: int
    read_seconds: float  #: from asking storage until the bytes were there
    decode_seconds: float
    collate_seconds: float
    threads: int
    cpus: int  #: that this process may use
    prefetch_depth: int  #: batches that the loader aims to have ready
    ready_batches: int  #: that were ready when the last one was taken
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
        """What a step waits for: training itself, the loader's threads, or the storage."""
        if self.wait_share < _WAITS:
            return "training"
        if self.busy_share < _BUSY:
            return "read"
        return "decode" if self.decode_seconds >= self.collate_seconds else "collate"

    @property
    def advice(self) -> str:
        """What would help; empty when training does not wait."""
        if self.limit == "training":
            return ""
        if self.limit == "read":
            if self.cache_hit_bytes + self.cache_miss_bytes == 0:
                return "a faster storage, cache=, or more memory_bytes to read further ahead would help"
            return "the cache fills, or is too small; more memory_bytes to read further ahead may help"
        # The time without waiting is what the threads must keep up with.
        needed = math.ceil(self.threads * self.seconds / max(self.seconds - self.waited_seconds, 1e-9))
        if needed <= self.cpus:
            return f"{needed - self.threads or 1} more threads would help (num_threads={max(needed, self.threads + 1)})"
        return f"it needs about {needed} threads, and this process may use {self.cpus} CPUs"

    def __str__(self) -> str:
        """One sentence: "training waited 3.1 % for data; the limit is decode; 4 more threads would help"."""
        if self.batches == 0:
            return "no batch after the first one yet"
        waited = f"training waited {self.wait_share:.1%} for data".replace("%", " %")
        if self.limit == "training":
            return f"{waited}; the loader is not the limit"
        return f"{waited}; the limit is {self.limit}; {self.advice}"

    def scalars(self, prefix: str = "loader/") -> dict[str, float]:
        """The numbers by name, as W&B and `mr.Run.log` take them: `wandb.log(report.scalars())`."""
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
        """The numbers in Prometheus' text format, such as a node_exporter reads from its textfile folder."""
        shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted((labels or {}).items()))
        lines = []
        for name, value in self.scalars("millrace_loader_").items():
            lines += [f"# TYPE {name} gauge", f"{name}{{{shown}}} {value:g}" if shown else f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Clock:
    """The consumer's side: how long it waited for batches after the first one. For one consumer at a time."""

    def __init__(self) -> None:
        self._begun: float | None = None
        self._before: dict[str, float] = {}
        self._waited = 0.0
        self._batches = 0

    def given(self, asked: float, now: float, stats: Mapping[str, float] | None) -> None:
        """A batch was asked for and given at these times. `stats`: of the reader, at the first batch."""
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
