# SPDX-License-Identifier: Apache-2.0
"""Sends the values of a run to other tools, if the user asks for it. Each sink gets the lines of the record, on the
record's thread."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from millrace import _core

_logger = logging.getLogger("millrace")


class Sink:
    """A tool that gets the values. If a sink fails, a warning names it once, and it gets no more values. The training
    continues."""

    name = ""

    def __init__(self) -> None:
        self._failed = False

    def take(self, lines: list[str]) -> None:
        self._try(lambda: self._put_all(lines))

    def close(self) -> None:
        self._try(self.end)

    def _try(self, work: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            work()
        except Exception as error:  # an error of another package must not end a training
            self._failed = True
            _logger.warning("no more values go to %s: %s: %s", self.name, type(error).__name__, error)

    def _put_all(self, lines: list[str]) -> None:
        for step, moment, values in _steps(lines):
            self.put(step, moment, values)

    def put(self, step: int, moment: float, values: dict[str, float]) -> None:
        raise NotImplementedError

    def end(self) -> None: ...


def _steps(lines: list[str]) -> Iterator[tuple[int, float, dict[str, float]]]:
    for line in lines:
        each = json.loads(line)
        if "step" in each:
            step, moment = each.pop("step"), each.pop("time")
            yield step, moment, {name: float(value) for name, value in each.items()}


class TensorBoard(Sink):
    """Writes event files for TensorBoard. Each record is written at once, so a reader never sees part of a record."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        folder.mkdir(exist_ok=True)
        path = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{time.time_ns()}"
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115, closed by end()
        self._file.write(_record(struct.pack("<Bd", 0x09, time.time()) + _text(0x1A, b"brain.Event:2")))

    def put(self, step: int, moment: float, values: dict[str, float]) -> None:
        for name, value in values.items():
            # Event {1 wall_time, 2 step, 5 Summary {1 Value {1 tag, 2 simple_value}}}
            scalar = _text(0x0A, name.encode()) + struct.pack("<Bf", 0x15, value)
            event = struct.pack("<Bd", 0x09, moment) + b"\x10" + _varint(step) + _text(0x2A, _text(0x0A, scalar))
            self._file.write(_record(event))

    def end(self) -> None:
        self._file.close()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _text(tag: int, data: bytes) -> bytes:
    return bytes([tag]) + _varint(len(data)) + data


def _masked_crc(data: bytes) -> bytes:
    crc = _core.crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _masked_crc(length) + event + _masked_crc(event)


class WandB(Sink):
    name = "wandb"

    def __init__(self, folder: Path, run: str, config: dict[str, Any]) -> None:
        super().__init__()
        self._run = importlib.import_module("wandb").init(dir=str(folder), name=run, config=config, resume="allow")

    def put(self, step: int, moment: float, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def end(self) -> None:
        self._run.finish()


class MLflow(Sink):
    name = "mlflow"

    def __init__(self, run: str, config: dict[str, Any]) -> None:
        super().__init__()
        self._mlflow = importlib.import_module("mlflow")
        self._mlflow.start_run(run_name=run)
        with contextlib.suppress(Exception):  # training continues even if mlflow's limits reject the parameters
            self._mlflow.log_params(config)

    def put(self, step: int, moment: float, values: dict[str, float]) -> None:
        self._mlflow.log_metrics({name.replace("%", "percent"): value for name, value in values.items()}, step=step)

    def end(self) -> None:
        self._mlflow.end_run()


def open_sink(name: str, folder: Path, run: str, config: dict[str, Any]) -> Sink:
    if name == "tensorboard":
        return TensorBoard(folder / "tensorboard")
    if name == "wandb":
        return WandB(folder, run, config)
    if name == "mlflow":
        return MLflow(run, config)
    raise ValueError(f"there is no sink '{name}': tensorboard, wandb or mlflow")
