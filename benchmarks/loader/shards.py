# SPDX-License-Identifier: Apache-2.0
"""What does the loader do before its first batch, where a dataset has very many shards?

    python benchmarks/loader/shards.py --shards 100000 --tokenizer tokenizer.json

Each document is a shard of its own. `millrace prepare` writes them durably, which takes some 5 ms each. Each row is a
new process that opens the folder and takes a first batch of 8 rows, and then 200 more:

  first       wall seconds from Loader() to the first batch
  CPU         user and system seconds of the process until then, without the import
  peak        resident memory of the process at most, with Python and NumPy
"""

import argparse
import json
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import time


def measure(folder: str, mode: str) -> None:
    import millrace as mr

    begin, cpu = time.perf_counter(), time.process_time()
    with mr.Loader(folder, seq_len=64, batch_size=8, collate=mode, seed=1) as loader:
        next(loader)
        first, cpu = time.perf_counter() - begin, time.process_time() - cpu
        begin = time.perf_counter()
        for _ in range(200):
            next(loader)
        more = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"mode": mode, "first_s": first, "cpu_s": cpu, "next_200_s": more, "peak_mib": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(*args.measure)
        return
    words, rng = (
        ["the", "mill", "turns", "slowly", "over", "a", "river", "and", "sings", "of", "grain"],
        random.Random(1),
    )
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder, "documents.txt")
        with text.open("w") as file:
            for number in range(args.shards):
                file.write(" ".join(rng.choice(words) for _ in range(60)) + f" {number}\n")
        out = f"{folder}/shards"
        subprocess.run(
            ["millrace", "prepare", text, "--tokenizer", args.tokenizer, "--out", out, "--shard-size", "1", "--no-text",
             "--quiet"], check=True)  # fmt: skip
        for mode in ("pad", "pack", "best_fit"):
            for _ in range(args.runs):
                command = [sys.executable, __file__, "--tokenizer", args.tokenizer, "--measure", out, mode]
                subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
