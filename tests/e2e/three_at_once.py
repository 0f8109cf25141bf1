# SPDX-License-Identifier: Apache-2.0
"""Run by test_one_process.py: a loader that reads shards, a checkpoint that is saved and a copy, in one process.

    python three_at_once.py SHARDS CHECKPOINTS SOURCE TARGET TENSOR_MIB LOADER_MIB [--alone]

Prints one JSON object: the peak of resident memory before the work and after it in MiB, the sum of the ids loaded, and the
seconds it took. With --alone each is timed by itself before all run together, with a step and a target of its own.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from pathlib import Path

import numpy as np

import millrace as mr
from millrace import _core

SHARDS, CHECKPOINTS, SOURCE, TARGET, TENSOR_MIB, LOADER_MIB = sys.argv[1:7]
WEIGHTS = np.random.default_rng(0).integers(0, 255, int(TENSOR_MIB) << 20, dtype=np.uint8)
TOKENS: list[int] = []


def load(_: str) -> None:
    options = dict(batch_size=32, seq_len=64, collate="pack", epochs=1, memory_bytes=int(LOADER_MIB) << 20)
    with mr.Loader(SHARDS, **options) as loader:
        TOKENS.append(sum(int(batch["input_ids"].sum()) for batch in loader))


def save(name: str) -> None:
    root = f"{CHECKPOINTS}/{name}"
    saver = _core.Saver(root, attempt=_core.make_attempt(root))
    saver.save(1, [("weights", "U8", WEIGHTS.shape, (0,), WEIGHTS.shape, WEIGHTS.ctypes.data)], "{}").wait()
    saver.close()


def copy(name: str) -> None:
    mr.cp(SOURCE, f"{TARGET}/{name}", recursive=True)


def seconds(*works, name: str) -> float:
    failed: list[BaseException] = []

    def run(work) -> None:
        try:
            work(name)
        except BaseException as error:
            failed.append(error)

    begin = time.perf_counter()
    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return time.perf_counter() - begin


def peak_mib() -> int:
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) >> 10


works = {"load": load, "save": save, "copy": copy}
before = peak_mib()
alone = {name: seconds(work, name="alone") for name, work in works.items()} if "--alone" in sys.argv else {}
together = seconds(*works.values(), name="together")
print(json.dumps({"before": before, "after": peak_mib(), "tokens": TOKENS, "alone": alone, "together": together}))
