# SPDX-License-Identifier: Apache-2.0
"""Restores of a model that every rank holds whole, with and without share=True, from a folder and from a bucket.

    python benchmarks/checkpoint/replicas.py --ranks 4 --mb 400 FOLDER [s3://bucket/bench]

Each rank is a process of this machine. The files leave the page cache before each restore. A line is the median of
the slowest rank. The endpoint and keys of a bucket come from the environment.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist

import millrace as mr


def uncache(root: str) -> None:
    for path in Path(root).rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def one_rank(rank: int, port: int, args: argparse.Namespace) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(args.ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    state = {f"layers.{i}": torch.randn(1 << 20) for i in range(args.mb // 4)}
    live = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    for root in args.roots:
        seconds: dict[bool, list[float]] = {False: [], True: []}
        with mr.torch.Checkpointer(root) as checkpointer:
            checkpointer.save(1, state).wait()
            for _ in range(args.rounds):
                for share, found in seconds.items():
                    if rank == 0 and "://" not in root:
                        uncache(root)
                    dist.barrier()
                    begin = time.perf_counter()
                    checkpointer.restore(live, share=share)
                    slowest = torch.tensor(time.perf_counter() - begin)
                    dist.all_reduce(slowest, dist.ReduceOp.MAX)
                    found.append(float(slowest))
        assert all(torch.equal(live[name], state[name]) for name in state)
        if rank == 0:
            alone, shared = (statistics.median(found) for found in seconds.values())
            print(f"{root}: {args.mb} MB on {args.ranks} ranks: each for itself {alone:.2f} s, shared {shared:.2f} s")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", nargs="+", help="folders or URLs; what is written there stays")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(one_rank, (port, args), nprocs=args.ranks)


if __name__ == "__main__":
    main()
