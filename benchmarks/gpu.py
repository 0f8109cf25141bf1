# SPDX-License-Identifier: Apache-2.0
"""Feeding and saving a GPU, each beside a floor that is measured in the same run. Under three minutes.

    python benchmarks/gpu.py [--part feed|save|early] [--json FILE] [--folder DIR]

feed: a training step of about 6.5 ms takes batches of 3 MB (16 rows of 8,192 ids: ids, labels, positions, int64).
  bare          one batch that lies on the device already: the floor
  host          batches of millrace.torch.Loader in host memory, not copied
  millrace      batches of millrace.torch.Loader(device="cuda")
  python ring   the same host batches through three pinned buffers, filled and copied by a thread of Python
Each step waits for the device, so a late batch is seen. Sides take turns; medians over all rounds. Batches on the
device are held against those on the host first.

save: parameters and AdamW state of linear layers (--gigabytes) into a folder.
  copy          all tensors into pinned memory that is there already: the floor of a stop
  disk          as many bytes by O_DIRECT from four threads, and fsync: the floor of "durable"
  remove        the removal of that file, which keep_last adds to the wait for a save: no step is removed here
  millrace      Checkpointer(reserve=bytes): how long save() stops training, until it is durable, and restore()
  torch.save    to a file, and fsync
What is restored is held against what was saved, to the bit. Then a training saves at every third step, and its saves
return before their copies are done: how long each stops it, beside steps without one. --saves many of a small model
are restored and held against copies that were made at the moment of each save.

Needs torch with a CUDA device, and millrace.
"""

from __future__ import annotations

import argparse
import io
import json
import mmap
import os
import queue
import shutil
import statistics
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import millrace as mr

ROWS, SEQ_LEN, VOCABULARY = 16, 8192, 32_000
STEPS, WARM_UP, ROUNDS = 150, 20, 3
STEP_MS = 6.5
Batch = dict[str, torch.Tensor]


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


# --- feed


def write_shards(folder: Path) -> list[str]:
    random = np.random.default_rng(1)
    paths = []
    for shard in range(4):
        paths.append(str(folder / f"{shard:05d}.tar"))
        with tarfile.open(paths[-1], "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(4000):
                data = io.BytesIO()
                np.save(data, random.integers(0, VOCABULARY, size=random.integers(64, 2049), dtype=np.uint32))
                member = tarfile.TarInfo(f"{number:06d}.token_ids.npy")
                member.size = data.tell()
                data.seek(0)
                tar.addfile(member, data)
    return paths


class Step:
    """A training step: an embedding of the batch, and products that take STEP_MS together."""

    def __init__(self) -> None:
        self.table = torch.randn(VOCABULARY, 64, device="cuda", dtype=torch.bfloat16)
        self.weight = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        self.x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        self.products = 20
        for _ in range(2):
            once = min(self.time() for _ in range(10))
            self.products = max(1, round(self.products * STEP_MS / 1000 / once))

    def time(self) -> float:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        self.run(None)
        torch.cuda.synchronize()
        return time.perf_counter() - begun

    def run(self, batch: Batch | None) -> torch.Tensor:
        y = self.x
        if batch is not None:
            rows = self.table[batch["input_ids"][:, :256]].sum() + batch["labels"].sum() + batch["position_ids"].sum()
            y = y + rows.to(y.dtype) * 0
        for _ in range(self.products):
            y = torch.mm(y, self.weight) * 0.01
        return y


def run_side(step: Step, fetch: Callable[[], Batch]) -> tuple[list[float], list[float]]:
    """Seconds of each step, and those spent in fetch()."""
    steps, waits = [], []
    for number in range(WARM_UP + STEPS):
        begun = time.perf_counter()
        batch = fetch()
        fetched = time.perf_counter()
        step.run(batch)
        torch.cuda.synchronize()
        if number >= WARM_UP:
            steps.append(time.perf_counter() - begun)
            waits.append(fetched - begun)
    return steps, waits


class PythonRing:
    """What a careful user writes in twenty lines: three pinned buffers, filled and copied by a thread."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.batches = batches
        self.stream = torch.cuda.Stream()
        self.ready: queue.Queue[tuple[Batch, torch.cuda.Event]] = queue.Queue(2)
        self.stopped = False
        self.thread = threading.Thread(target=self.feed, daemon=True)
        self.thread.start()

    def feed(self) -> None:
        buffers: list[Batch] = [{} for _ in range(3)]
        events: list[torch.cuda.Event | None] = [None] * 3
        turn = 0
        while not self.stopped:
            batch = next(self.batches)
            if (event := events[turn]) is not None:
                event.synchronize()
            buffer = buffers[turn]
            with torch.cuda.stream(self.stream):
                moved = {}
                for name, value in batch.items():
                    if name not in buffer or buffer[name].shape != value.shape:
                        buffer[name] = torch.empty_like(value, pin_memory=True)
                    buffer[name].copy_(value)
                    moved[name] = buffer[name].to("cuda", non_blocking=True)
                event = torch.cuda.Event()
                event.record(self.stream)
            events[turn] = event
            turn = (turn + 1) % 3
            while not self.stopped:
                try:
                    self.ready.put((moved, event), timeout=0.1)
                    break
                except queue.Full:
                    pass

    def __call__(self) -> Batch:
        batch, event = self.ready.get()
        torch.cuda.current_stream().wait_event(event)
        for value in batch.values():
            value.record_stream(torch.cuda.current_stream())
        return batch

    def close(self) -> None:
        self.stopped = True
        self.thread.join()


def feed(folder: Path) -> dict[str, Any]:
    shards = write_shards(folder)

    def loader(device: str | None) -> mr.torch.Loader:
        return mr.torch.Loader(shards, batch_size=ROWS, seq_len=SEQ_LEN, collate="pack", seed=1, device=device)

    with loader(None) as host, loader("cuda") as device:
        for number in range(30):
            ours, expected = next(device), next(host)
            assert ours.keys() == expected.keys()
            for name in expected:
                assert ours[name].is_cuda and torch.equal(ours[name].cpu(), expected[name]), (number, name)
        assert device.state_dict() == host.state_dict()

    size = ROWS * SEQ_LEN * 8 * 3
    pinned, target = (
        torch.empty(size, dtype=torch.uint8, pin_memory=True),
        torch.empty(size, dtype=torch.uint8, device="cuda"),
    )
    times = []
    for _ in range(50):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        target.copy_(pinned, non_blocking=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)

    step = Step()
    fixed = {
        name: torch.zeros(ROWS, SEQ_LEN, dtype=torch.int64, device="cuda")
        for name in ("input_ids", "labels", "position_ids")
    }
    seen: dict[str, tuple[list[float], list[float]]] = {}
    for _ in range(ROUNDS):
        for side in ("bare", "host", "millrace", "python ring"):
            if side == "bare":
                measured = run_side(step, lambda: fixed)
            elif side == "python ring":
                with loader(None) as host:
                    ring = PythonRing(iter(host))
                    measured = run_side(step, ring)
                    ring.close()
            else:
                with loader("cuda" if side == "millrace" else None) as one:
                    take = one.__next__
                    measured = run_side(step, take if side == "millrace" else lambda take=take: (take(), fixed)[1])
            steps, waits = seen.setdefault(side, ([], []))
            steps += measured[0]
            waits += measured[1]
    bare = statistics.median(seen["bare"][0])
    return {
        "batch_mb": size / 1e6,
        "copy_gb_per_s": size / statistics.median(times) / 1e9,
        "sides": {
            side: {
                "step_ms": statistics.median(steps) * 1e3,
                "step_to_bare": statistics.median(steps) / bare,
                "wait_ms": statistics.median(waits) * 1e3,
                "wait_p99_ms": percentile(waits, 0.99) * 1e3,
            }
            for side, (steps, waits) in seen.items()
        },
    }


# --- save


def write_direct(path: Path, size: int) -> tuple[float, float]:
    """Seconds for `size` bytes by O_DIRECT from four threads, and fsync; and for the removal of that file."""
    block = 16 << 20
    memory = mmap.mmap(-1, block)  # page-aligned
    memory.write(os.urandom(1 << 20) * 16)
    view = memoryview(memory)
    blocks = -(-size // block)
    begun = time.perf_counter()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: os.pwrite(descriptor, view, number * block), range(blocks)))
    os.fsync(descriptor)
    os.close(descriptor)
    written = time.perf_counter()
    path.unlink()
    return written - begun, time.perf_counter() - written


def read_direct(path: Path) -> float:
    """Seconds for the file's whole blocks by O_DIRECT, by eight threads."""
    block = 16 << 20
    local = threading.local()

    def read(number: int) -> None:
        if not hasattr(local, "memory"):
            local.memory = mmap.mmap(-1, block)
        os.preadv(descriptor, [local.memory], number * block)

    begun = time.perf_counter()
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(path.stat().st_size // block)))
    os.close(descriptor)
    return time.perf_counter() - begun


def save(folder: Path, gigabytes: float) -> dict[str, Any]:
    side = 4096
    layers = max(1, round(gigabytes * 1e9 / (side * side * 4 * 3)))
    model = torch.nn.Sequential(*(torch.nn.Linear(side, side, device="cuda") for _ in range(layers)))
    optim = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optim.step()
    optim.zero_grad()
    state = {"model": model, "optim": optim}
    tensors = [*model.parameters(), *(v for s in optim.state.values() for v in s.values())]
    total = sum(t.nbytes for t in tensors)
    on_device = [t.detach() for t in tensors if t.is_cuda]

    pinned = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in on_device]
    copies = []
    for _ in range(4):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for target, source in zip(pinned, on_device, strict=True):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        copies.append(time.perf_counter() - begun)
    copy = statistics.median(copies[1:])
    del pinned
    disk, removal = map(
        statistics.median, zip(*(write_direct(folder / "direct", total) for _ in range(3)), strict=True)
    )

    stops, durables = [], []
    with mr.torch.Checkpointer(folder / "run", reserve=total + (1 << 20)) as checkpointer:
        time.sleep(0.5 + total / 2e9)  # the memory is touched and pinned meanwhile
        for number in range(4):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            saved = checkpointer.save(number + 1, state)
            stops.append(time.perf_counter() - begun)
            saved.wait()
            durables.append(time.perf_counter() - begun)
        file = next((folder / "run").glob("step-*4/*/rank-*"))
        read = statistics.median(read_direct(file) for _ in range(3))
        expected = [t.detach().clone() for t in tensors]
        restores = []
        for _ in range(3):
            with torch.no_grad():
                for t in tensors:
                    t.zero_()
            torch.cuda.synchronize()
            begun = time.perf_counter()
            assert checkpointer.restore(state) == 4
            torch.cuda.synchronize()
            restores.append(time.perf_counter() - begun)
            now = [*model.parameters(), *(v for s in optim.state.values() for v in s.values())]
            assert all(torch.equal(a.detach(), b) for a, b in zip(now, expected, strict=True))
    # As a process that starts: an optimizer that has no state yet.
    fresh = torch.optim.AdamW(model.parameters())
    with mr.torch.Checkpointer(folder / "run") as checkpointer:
        begun = time.perf_counter()
        assert checkpointer.restore({**state, "optim": fresh}) == 4
        torch.cuda.synchronize()
        restore_fresh = time.perf_counter() - begun
    now = [*model.parameters(), *(v for s in fresh.state.values() for v in s.values())]
    assert all(torch.equal(a.detach(), b) for a, b in zip(now, expected, strict=True))
    begun = time.perf_counter()
    torch.save({"model": model.state_dict(), "optim": optim.state_dict()}, folder / "plain.pt")
    with open(folder / "plain.pt", "rb+") as file:
        os.fsync(file.fileno())
    plain = time.perf_counter() - begun
    shutil.rmtree(folder / "run")
    return {
        "gb": total / 1e9,
        "copy_s": copy,
        "disk_s": disk,
        "remove_s": removal,
        "first_stop_s": stops[0],
        "stop_s": statistics.median(stops[1:]),
        "stop_to_copy": statistics.median(stops[1:]) / copy,
        "durable_s": statistics.median(durables[1:]),
        "durable_to_disk": statistics.median(durables[1:]) / disk,
        "restore_first_s": restores[0],
        "restore_s": statistics.median(restores[1:]),
        "restore_fresh_s": restore_fresh,
        "read_s": read,
        "restore_to_read": statistics.median(restores[1:]) / max(read, copy),
        "torch_save_s": plain,
    }


def early_stops(folder: Path, gigabytes: float) -> dict[str, Any]:
    """How long saves stop a training whose forward and backward last longer than the copies."""
    side, batch = 4096, 8192
    layers = max(1, round(gigabytes * 1e9 / (side * side * 4 * 3)))
    model = torch.nn.Sequential(*(torch.nn.Linear(side, side, device="cuda") for _ in range(layers)))
    optim = torch.optim.AdamW(model.parameters(), lr=1e-6)
    x = torch.randn(batch, side, device="cuda")

    def step() -> None:
        optim.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optim.step()

    stops, steps, beside = [], [], []
    with mr.torch.Checkpointer(folder / "early", keep_last=1, reserve=int(gigabytes * 1.1e9)) as checkpointer:
        time.sleep(0.5 + gigabytes / 2)
        for number in range(1, 8):
            for turn in range(3):
                torch.cuda.synchronize()
                begun = time.perf_counter()
                if turn == 0:
                    saved = checkpointer.save(number, {"model": model, "optim": optim})
                    stops.append(time.perf_counter() - begun)
                step()
                torch.cuda.synchronize()
                (beside if turn == 0 else steps).append(time.perf_counter() - begun)
                if turn == 0:
                    saved.wait()
        refused = checkpointer._deferral.refused
    return {
        "refused": refused,
        "stop_s": statistics.median(stops[3:]),
        "first_stops_s": stops[:3],
        "step_s": statistics.median(steps[6:]),
        "step_with_save_s": statistics.median(beside[3:]),
    }


def early_equal(folder: Path, saves: int) -> dict[str, Any]:
    """Saves of a training that goes on, held against what was there at the moment of each."""
    small = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 256)).cuda()
    optim = torch.optim.AdamW(small.parameters(), lr=0.01)
    data = torch.randn(64, 256, device="cuda")
    expected = []

    def all_of_it() -> list[torch.Tensor]:
        state = [v for s in optim.state.values() for v in s.values()]
        return [*small.state_dict().values(), *state]

    returned_early = 0
    with mr.torch.Checkpointer(folder / "many") as checkpointer:
        for number in range(saves):
            expected.append([t.detach().clone() for t in all_of_it()])
            checkpointer.save(number, {"model": small, "optim": optim})
            returned_early += bool(checkpointer._deferral._pending)
            for _ in range(3):
                optim.zero_grad()
                small(data + torch.randn_like(data)).square().mean().backward()
                optim.step()
    with mr.torch.Checkpointer(folder / "many") as checkpointer:
        for number in range(1, saves):  # the optimizer has no state before its first step
            assert checkpointer.restore({"model": small, "optim": optim}, number) == number
            for now, then in zip(all_of_it(), expected[number], strict=True):
                assert torch.equal(now.cpu(), then.cpu()), number
    return {"equal_saves": saves - 1, "of_them_early": returned_early}


def early(folder: Path, gigabytes: float, saves: int) -> dict[str, Any]:
    """Saves whose copies run beside the next forward and backward."""
    return early_stops(folder, gigabytes) | early_equal(folder, saves)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["feed", "save", "early"], action="append")
    parser.add_argument("--saves", type=int, default=300)
    parser.add_argument("--gigabytes", type=float, default=3.2)
    parser.add_argument("--folder", type=Path, help="where files are made and removed; default: the temporary folder")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu.py: no CUDA device here", file=sys.stderr)
        return 1
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "processors": len(os.sched_getaffinity(0)),
    }
    folder = Path(tempfile.mkdtemp(prefix="millrace-gpu-", dir=args.folder))
    try:
        parts = {
            "feed": lambda: feed(folder),
            "save": lambda: save(folder, args.gigabytes),
            "early": lambda: early(folder, args.gigabytes, args.saves),
        }
        for part in args.part or parts:
            result[part] = parts[part]()
            print(json.dumps({part: result[part]}, indent=1), flush=True)
            if args.json:
                args.json.write_text(json.dumps(result, indent=1))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
