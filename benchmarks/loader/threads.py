# SPDX-License-Identifier: Apache-2.0
"""How many tokens a second a loader gives with 1, 2 and 4 threads, and for how much CPU time.

    python benchmarks/loader/threads.py SHARDS
    python benchmarks/compare.py OLD NEW --runs 7 -- $PWD/benchmarks/loader/threads.py SHARDS

SHARDS: a folder that `millrace prepare --format tokens` wrote. Rows of 2,048 tokens, padded and packed, and packed rows
of 128, in batches of 16,384 and 8,192 tokens; the training loop does nothing else. Prints a JSON object a line.
"""

import argparse
import json
import resource
import time

KINDS = {
    "rows of 2,048": {"batch_size": 8, "seq_len": 2048, "collate": "pad"},
    "packed rows of 2,048": {"batch_size": 8, "seq_len": 2048, "collate": "pack"},
    "packed rows of 128": {"batch_size": 64, "seq_len": 128, "collate": "pack"},
}
WARM_UP = 20  # batches
LOOK = 20  # batches between two looks at the clock


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(shards: str, kind: str, threads: int, seconds: float) -> dict[str, object]:
    import millrace as mr

    with mr.Loader(shards, seed=1, num_threads=threads, **KINDS[kind]) as loader:
        batches = iter(loader)
        for _ in range(WARM_UP):
            next(batches)
        tokens, cpu, begin = 0, cpu_seconds(), time.perf_counter()
        while time.perf_counter() - begin < seconds:
            tokens += sum(next(batches)["input_ids"].size for _ in range(LOOK))
        wall, cpu = time.perf_counter() - begin, cpu_seconds() - cpu
    return {
        "what": f"{kind}, {threads} threads",
        "M_tokens_per_s": tokens / wall / 1e6,
        "M_tokens_per_cpu_s": tokens / cpu / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards")
    parser.add_argument("--threads", default="1,2,4", help="counts of threads (default 1,2,4)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement (default 1.5)")
    args = parser.parse_args()
    for kind in KINDS:
        for threads in args.threads.split(","):
            print(json.dumps(measure(args.shards, kind, int(threads), args.seconds)), flush=True)


if __name__ == "__main__":
    main()
