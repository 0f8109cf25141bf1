# SPDX-License-Identifier: Apache-2.0
"""Records a training run: its settings, the values that it logged, and how it ended."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import secrets
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import millrace
from millrace import _core, _sinks

_logger = logging.getLogger("millrace")


class _Counts(Protocol):
    def stats(self) -> Mapping[str, Any]: ...


class Run:
    """Records a training run in a folder (docs/format/run.md), which `millrace runs` reads:

        with mr.Run("runs/a", config=vars(args), loader=loader, checkpointer=checkpointer) as run:
            ...
            run.log(step, loss=loss, lr=lr)

    folder: the folder of this run. A start after a requeue adds a file to it.
    name: the name of the run; default: the name of the folder.
    config: the settings, as plain data. Values of names such as "api_key", and tokens recognised by their form, are not
        recorded.
    loader, checkpointer: the objects whose stats() are recorded every `counters_seconds`, as `loader` and
        `checkpointer`.
    rank: only rank 0 records; on the other ranks, log() does nothing. Default: RANK, else SLURM_PROCID, else 0.
    flush_seconds: values passed to log() are in the file after this time at the latest, whatever happens to the
        process.
    sinks: "tensorboard", "wandb" and "mlflow" also get the values. The latter two need their package.

    Not thread-safe. The object owns a thread: close() it or use it as a context manager. Raises OSError, ImportError (a
    sink's package), ValueError (an unknown sink).
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        loader: _Counts | None = None,
        checkpointer: _Counts | None = None,
        rank: int | None = None,
        flush_seconds: float = 1.0,
        counters_seconds: float = 10.0,
        sinks: Sequence[str] = (),
    ) -> None:
        self.folder = Path(folder).absolute()
        self.name = name or self.folder.name
        self.loader, self.checkpointer = loader, checkpointer
        self._rank = _rank() if rank is None else rank
        self._keys: dict[str, str] = {}
        self._lines: list[str] = []
        self._pending = b""
        self._flush_seconds, self._counters_seconds = flush_seconds, counters_seconds
        self._next_counters = time.monotonic() + counters_seconds
        self._last_step: int | None = None
        self._told = False
        self._file = -1
        self._pid = os.getpid()
        self._sinks: list[_sinks.Sink] = []
        if self._rank == 0:
            self._open(dict(config or {}), sinks)

    def _open(self, config: dict[str, Any], sinks: Sequence[str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        first = not any(self.folder.glob("*.run.jsonl"))
        kept = _without_secrets(config)
        start = {"type": "start", "format": "millrace-record", "version": 1, "time": time.time(), "name": self.name}
        start |= json.loads(_core.run_facts(os.getcwd()))
        start |= {
            "world_size": int(os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_NTASKS") or 1),
            "gpus": _gpus(),
        }
        start |= {"python": sys.version.split()[0], "torch": getattr(sys.modules.get("torch"), "__version__", None)}
        start |= {"command": _without_secrets(sys.argv), "config": kept}
        now = time.time_ns()
        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now // 10**9))
        path = self.folder / f"{moment}.{now % 10**9:09}Z-{secrets.token_hex(8)}.run.jsonl"
        self._sinks = [_sinks.open_sink(each, self.folder, self.name, kept) for each in sinks]
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._write((json.dumps(start, allow_nan=False, default=str) + "\n").encode())
        if first:
            try:
                _core.remember_run(str(self.folder))
            except OSError as error:
                _logger.warning("millrace runs ls does not list %s: %s", self.folder, error)
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._keep_flushing, name="mr-record", daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Records values of a step. Names without a group belong to "train": loss=1.5 is "train/loss".

        values: values whose names are not Python names: {"valid/loss": 2.0}. A value is a number, or is converted with
            `float(value)`. log() waits for a tensor on a GPU. NaN and infinity are kept.

        Raises TypeError, ValueError (a negative step), RuntimeError (the run is closed, or another process made it).
        """
        if self._file < 0:
            if self._rank:
                return
            raise RuntimeError("the run is closed")
        step = int(step)
        if step < 0:
            raise ValueError(f"step is {step}; steps are counted from 0")
        self._last_step = step
        line = f'{{"step":{step},"time":{time.time():.3f},"train/step":{step}'
        keys = self._keys
        for name, value in more.items() if values is None else {**values, **more}.items():
            key = keys.get(name) or self._key(name)
            if type(value) is not float:
                value = float(value)
            line += key + (repr(value) if math.isfinite(value) else _WORDS[str(value)])
        self._lines.append(line + "}\n")
        if time.monotonic() >= self._next_counters:
            self._count()

    def _key(self, name: str) -> str:
        return self._keys.setdefault(name, "," + json.dumps(name if "/" in name else f"train/{name}") + ":")

    def _count(self) -> None:
        self._next_counters = time.monotonic() + self._counters_seconds
        counters: dict[str, Any] = {"type": "counters", "time": round(time.time(), 3)}
        for name, counted in (("loader", self.loader), ("checkpointer", self.checkpointer)):
            if counted is not None:
                counters[name] = {
                    key: value for key, value in counted.stats().items() if isinstance(value, (int, float))
                }
        if len(counters) > 2:
            self._lines.append(json.dumps(counters) + "\n")
        if self._last_step is not None:
            values = "".join(self._key(name) + repr(value) for name, value in _system().items())
            self._lines.append(f'{{"step":{self._last_step},"time":{time.time():.3f}{values}}}\n')

    def flush(self) -> None:
        """Writes the logged values to the file. Raises RuntimeError in a forked child."""
        if self._file < 0:
            return
        if os.getpid() != self._pid:
            raise RuntimeError("a run belongs to the process that made it; make another one after a fork")
        with self._lock:
            lines, self._lines = self._lines, []
            self._write("".join(lines).encode())
            tell_progress(self._last_step)
        for sink in self._sinks:
            sink.take(lines)

    def _write(self, data: bytes) -> None:
        # Data that did not fit on a full disk is written later, so that no line is cut in two.
        self._pending += data
        try:
            while self._pending:
                self._pending = self._pending[os.write(self._file, self._pending) :]
        except OSError as error:
            if not self._told:
                _logger.warning("the record %s is not written for now: %s", self.folder, error)
            self._told = True

    def _keep_flushing(self) -> None:
        while not self._closing.wait(self._flush_seconds):
            if self._lines or self._pending:
                self.flush()

    def close(self, status: str = "completed", error: str = "") -> None:
        """Writes how the run ended: "completed", "requeue" (the run continues in another start) or "failed" with the
        type of the error."""
        if self._file < 0:
            return
        self._closing.set()
        self._thread.join()
        self._count()
        end = {"type": "end", "time": round(time.time(), 3), "status": status, "error": error}
        self._lines.append(json.dumps(end) + "\n")
        self.flush()
        for sink in self._sinks:
            sink.close()
        with contextlib.suppress(OSError):
            os.fsync(self._file)
        os.close(self._file)
        self._file = -1

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, _: TracebackType | None) -> None:
        code = raised.code if isinstance(raised, SystemExit) else None
        if raised is None or (isinstance(raised, SystemExit) and code in (None, 0)):
            self.close()
        elif code == millrace.EXIT_REQUEUE:
            self.close("requeue")
        else:
            self.close("failed", type(raised).__name__)


_WORDS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def _rank() -> int:
    return int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0)


def _without_secrets(value: Any, name: str = "") -> Any:
    """Returns the value as plain data without secrets. JSON's types stay; any other value becomes its text."""
    if isinstance(value, Mapping):
        return {str(key): _without_secrets(below, str(key)) for key, below in value.items()}
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(each, str) for each in value) and not _core.names_secret(name):
            return _core.words_without_secrets(list(value))
        return [_without_secrets(each, name) for each in value]
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return "<removed>" if _core.names_secret(name) else _core.without_secrets(str(value))


def _cuda() -> Any:
    """Returns torch.cuda if this process uses it already."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_available() else None


def _gpus() -> int:
    nodes, on_node = os.environ.get("SLURM_JOB_NUM_NODES"), os.environ.get("SLURM_GPUS_ON_NODE")
    if nodes and on_node and on_node.isdigit():
        return int(nodes) * int(on_node)
    cuda = _cuda()
    return cuda.device_count() if cuda is not None else 0


def _system() -> dict[str, float]:
    """Returns the memory use of the node and of this process's GPU, by the names that dashboards use."""
    values: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
        values["system/cpu_mem_%"] = round(100 * (1 - free / total), 2)
    if (cuda := _cuda()) is not None and cuda.is_initialized():
        free, total = cuda.mem_get_info()
        values["system/gpu_mem_GB"] = round((total - free) / 1e9, 3)
    return values


def tell_progress(step: int | None) -> None:
    """Tells the batch script the last step of the training. A training that makes no more progress is not requeued."""
    path = os.environ.get("MILLRACE_PROGRESS")
    if path and step is not None:
        with contextlib.suppress(OSError):
            Path(path).write_text(f"{step}\n")
