# SPDX-License-Identifier: Apache-2.0
"""Durable saves and cold loads of a real AdamW state, beside a bare O_DIRECT program, torch.save, safetensors and
torch.distributed.checkpoint (DCP), synchronous and not.

    python benchmarks/checkpoint/bench.py --folder /nvme/bench --mb 2000 --rounds 5
    python benchmarks/checkpoint/bench.py --folder /nvme/bench --small 20000
    python benchmarks/checkpoint/bench.py --folder /nvme/bench --engines bare,millrace,dcp,dcp_async
    python benchmarks/checkpoint/bench.py --folder /nvme/bench --s3 s3://bucket/bench --engines millrace,s3

Every save ends when its bytes would survive a power cut: fsync of file and folder for those that do not do it. A load
ends when every byte is in tensors that were there before; the file's pages leave the cache first. Rounds take turns;
a line is a median. GB are 1e9 bytes. Build the bare program first: ninja -C build/dev millrace_checkpoint_floor.
The engine `s3` saves to the bucket of --s3 (its endpoint and keys as usual, from the environment) and restores from it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

import millrace as mr

FLOOR = Path(__file__).parents[2] / "build/dev/benchmarks/checkpoint/millrace_checkpoint_floor"
Cost = tuple[float, float]  # wall and CPU seconds


def adamw_state(megabytes: int) -> dict[str, torch.Tensor]:
    """Weights in bfloat16, both moments and the 4-byte steps of AdamW, layer by layer: 14 bytes a parameter."""
    layers = max(1, megabytes * 1_000_000 // (10 * 12 * 1_048_577))
    state = {}
    for layer in range(layers):
        for part, columns in (("attention", 4), ("up", 3), ("down", 3)):
            shape = (1024, 1024 * columns + 1)
            name = f"layers.{layer}.{part}"
            state[f"{name}.weight"] = torch.randn(shape).to(torch.bfloat16)
            for moment in ("exp_avg", "exp_avg_sq"):
                state[f"{name}.{moment}"] = torch.randn(shape)
            state[f"{name}.step"] = torch.tensor(float(layer))
    return state


def small_state(count: int) -> dict[str, torch.Tensor]:
    return {f"layers.{i}.weight": torch.randn(8, 8) for i in range(count)}


def cost_of(body: Callable[[], None]) -> Cost:
    def cpu() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    start, before = time.perf_counter(), cpu()
    body()
    return time.perf_counter() - start, cpu() - before


def sync(path: Path) -> None:
    for each in (path, path.parent):
        fd = os.open(each, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def uncache(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


class Bench:
    def __init__(self, folder: Path, state: dict[str, torch.Tensor], reserve: bool, bucket: str) -> None:
        self.folder, self.state = folder, state
        self.bytes = sum(tensor.nbytes for tensor in state.values())
        self.live = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        self.step = self.s3_step = 0
        self.stop = self.dcp_stop = 0.0
        options = {"reserve": state} if reserve else {}
        self.checkpointer = mr.torch.Checkpointer(folder / "millrace", keep_last=1, **options)
        self.remote = mr.torch.Checkpointer(bucket, keep_last=1, **options) if bucket else None
        if reserve:
            time.sleep(5)  # a training would work meanwhile

    def save_millrace(self) -> Cost:
        def body() -> None:
            start = time.perf_counter()
            save = self.checkpointer.save(self.step, self.state)
            self.stop = time.perf_counter() - start
            save.wait()

        self.step += 1
        return cost_of(body)

    def save_s3(self) -> Cost:
        self.s3_step += 1
        return cost_of(lambda: self.remote.save(self.s3_step, self.state).wait())

    def save_torch(self) -> Cost:
        def body() -> None:
            torch.save(self.state, self.folder / "torch.pt")
            sync(self.folder / "torch.pt")

        return cost_of(body)

    def save_safetensors(self) -> Cost:
        def body() -> None:
            safetensors.torch.save_file(self.state, self.folder / "peer.safetensors")
            sync(self.folder / "peer.safetensors")

        return cost_of(body)

    def save_bare(self) -> Cost:
        return self._floor("write", self.folder / "bare", str(self.bytes))

    def save_dcp(self) -> Cost:
        def body() -> None:
            dcp.save(self.state, checkpoint_id=self.folder / "dcp", no_dist=True)
            sync(self.folder / "dcp/.metadata")

        shutil.rmtree(self.folder / "dcp", ignore_errors=True)
        return cost_of(body)

    def save_dcp_async(self) -> Cost:
        def body() -> None:
            start = time.perf_counter()
            future = dcp.async_save(self.state, checkpoint_id=self.folder / "dcp_async")
            self.dcp_stop = time.perf_counter() - start
            future.result()
            sync(self.folder / "dcp_async/.metadata")

        shutil.rmtree(self.folder / "dcp_async", ignore_errors=True)
        return cost_of(body)

    def load_dcp(self) -> Cost:
        return cost_of(lambda: dcp.load(self.live, checkpoint_id=self.folder / "dcp", no_dist=True))

    def load_dcp_async(self) -> Cost:
        return cost_of(lambda: dcp.load(self.live, checkpoint_id=self.folder / "dcp_async", no_dist=True))

    def load_millrace(self) -> Cost:
        return cost_of(lambda: self._expect(self.checkpointer.restore(self.live), self.step))

    def load_s3(self) -> Cost:
        return cost_of(lambda: self._expect(self.remote.restore(self.live), self.s3_step))

    def load_torch(self) -> Cost:
        return cost_of(lambda: self._copy(torch.load(self.folder / "torch.pt", weights_only=True)))

    def load_safetensors(self) -> Cost:
        return cost_of(lambda: self._copy(safetensors.torch.load_file(self.folder / "peer.safetensors")))

    def load_bare(self) -> Cost:
        return self._floor("read", self.folder / "bare")

    def copy(self) -> float:
        """Of all bytes into memory that is there, by torch."""
        start = time.perf_counter()
        self._copy(self.state)
        return time.perf_counter() - start

    def close(self) -> None:
        self.checkpointer.close()
        if self.remote:
            self.remote.close()

    def _expect(self, restored: int | None, saved: int) -> None:
        assert restored == saved

    def _copy(self, loaded: dict[str, torch.Tensor]) -> None:
        for name, tensor in loaded.items():
            self.live[name].copy_(tensor)

    def _floor(self, *arguments: str | Path) -> Cost:
        answer = subprocess.run([FLOOR, *arguments], check=True, capture_output=True, text=True).stdout.split()
        return float(answer[0]), float(answer[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="on the disk to measure; emptied at the end")
    parser.add_argument("--mb", type=int, default=2000)
    parser.add_argument("--small", type=int, default=0, help="instead: this many tensors of 64 floats")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engines", default="bare,millrace,safetensors,torch")
    parser.add_argument("--s3", default="", metavar="URL", help="where the engine s3 saves; not emptied")
    parser.add_argument("--reserve", action="store_true", help="the memory of the first save is touched before it")
    parser.add_argument("--json", action="store_true", help="the single runs, one line")
    args = parser.parse_args()
    engines = args.engines.split(",")
    if "s3" in engines and not args.s3:
        parser.error("the engine s3 needs --s3 URL")
    args.folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(args.folder, small_state(args.small) if args.small else adamw_state(args.mb), args.reserve, args.s3)
    runs: dict[str, list[Cost]] = {}
    stops, dcp_stops, copies = [], [], []
    if "dcp_async" in engines:
        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        for _ in range(args.rounds + 1):
            for engine in engines:
                runs.setdefault(f"save {engine}", []).append(getattr(bench, f"save_{engine}")())
                if engine == "millrace":
                    stops.append(bench.stop)
                    copies.append(bench.copy())
                if engine == "dcp_async":
                    dcp_stops.append(bench.dcp_stop)
            for engine in engines:
                uncache(args.folder)
                runs.setdefault(f"load {engine}", []).append(getattr(bench, f"load_{engine}")())
        for name, tensor in bench.state.items():
            assert torch.equal(bench.live[name], tensor)
    finally:
        bench.close()
        shutil.rmtree(args.folder)
    if args.json:
        print(json.dumps({"bytes": bench.bytes, "tensors": len(bench.state), "runs": runs, "stops": stops}))
        return
    gigabytes = bench.bytes / 1e9
    print(f"{gigabytes:.3f} GB in {len(bench.state)} tensors")
    if stops:
        print(f"the first stop {stops[0]:.3f} s, later ones {statistics.median(stops[1:]):.3f} s; one copy of the tensors "
              f"{statistics.median(copies[1:]):.3f} s")  # fmt: skip
    if dcp_stops:
        print(f"DCP's async_save stops {statistics.median(dcp_stops[1:]):.3f} s")
    print("| | s | GB/s | CPU-s a GB | us a tensor |\n|---|---|---|---|---|")
    for what, costs in runs.items():
        wall = statistics.median(cost[0] for cost in costs[1:])
        cpu = statistics.median(cost[1] for cost in costs[1:])
        each = wall / len(bench.state) * 1e6
        print(f"| {what} | {wall:.3f} | {gigabytes / wall:.2f} | {cpu / gigabytes:.2f} | {each:.1f} |")


if __name__ == "__main__":
    main()
