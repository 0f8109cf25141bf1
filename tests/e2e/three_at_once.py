# SPDX-License-Identifier: Apache-2.0
"""Run by test_one_process.py: a loader that reads shards, a checkpoint that is saved and a copy, in one process.

    python three_at_once.py SHARDS CHECKPOINTS SOURCE TARGET TENSOR_MIB LOADER_MIB

Prints one JSON object: the peak of resident memory before the work and after it in MiB, the sum of the ids loaded, the
seconds it took, the requests and the bytes of their bodies both ways.
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


def load() -> None:
    options = dict(batch_size=32, seq_len=64, collate="pack", epochs=1, memory_bytes=int(LOADER_MIB) << 20)
    with mr.Loader(SHARDS, **options) as loader:
        TOKENS.append(sum(int(batch["input_ids"].sum()) for batch in loader))


def save() -> None:
    saver = _core.Saver(CHECKPOINTS, attempt=_core.make_attempt(CHECKPOINTS))
    saver.save(1, [("weights", "U8", WEIGHTS.shape, (0,), WEIGHTS.shape, WEIGHTS.ctypes.data)], "{}").wait()
    saver.close()


def copy() -> None:
    mr.cp(SOURCE, TARGET, recursive=True)


def seconds(*works) -> float:
    failed: list[BaseException] = []

    def run(work) -> None:
        try:
            work()
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


before = peak_mib()
taken = seconds(load, save, copy)
counts = _core.metrics()
print(
    json.dumps(
        {
            "before": before,
            "after": peak_mib(),
            "tokens": TOKENS,
            "seconds": taken,
            "requests": counts["requests"] - counts["retries"],
            "bytes": counts["sent_bytes"] + counts["received_bytes"],
        }
    )
)
