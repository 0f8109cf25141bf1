# SPDX-License-Identifier: Apache-2.0
"""`millrace bench storage` beside fio: the same requests in turns, on one folder, medians of several rounds.

python benchmarks/storage/beside_fio.py FOLDER [--rounds 5] [--size 256] [--ranks 4] [--seconds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path


def by_fio(folder: Path, ranks: int, mib: int, seconds: float) -> dict[str, float]:
    common = ["fio", "--output-format=json", f"--directory={folder}", "--direct=1", "--group_reporting", "--thread"]
    common += [f"--size={mib}M", f"--runtime={seconds}"]

    def run(*more: str) -> dict:
        done = subprocess.run([*common, *more], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["jobs"][0]

    stream = [f"--numjobs={ranks}", "--bs=1M", "--ioengine=psync", "--name=stream"]
    found = {"write": run(*stream, "--rw=write", "--end_fsync=1")["write"]["bw_bytes"]}
    found["read"] = run(*stream, "--rw=read")["read"]["bw_bytes"]
    # As many threads as there are requests at once, each on the file of a rank.
    random = ["--numjobs=32", "--bs=4k", "--ioengine=psync", "--time_based", "--rw=randread", "--name=random"]
    files = f"--filename={':'.join(f'stream.{rank}.0' for rank in range(ranks))}"
    found["read random 4 KiB"] = run(*random, files, "--file_service_type=random")["read"]["iops"]
    return found


def by_millrace(folder: Path, ranks: int, mib: int, seconds: float) -> dict[str, float]:
    command = [
        os.environ.get("MILLRACE_BIN", "millrace"),
        "bench",
        "storage",
        folder,
        "--json",
        "--profile",
        "training",
    ]
    command += ["--rounds", 1, "--ranks", ranks, "--size", f"{mib}MiB", "--seconds", f"{seconds}s", "--files", 10]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    return {each["test"]: each["median"] for each in results if each["type"] == "bench_storage"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=256, help="MiB of each rank's file")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3)
    args = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {"fio": [], "millrace": []}
    for _ in range(args.rounds):
        for name, measure in (("fio", by_fio), ("millrace", by_millrace)):
            work = Path(tempfile.mkdtemp(dir=args.folder))
            try:
                rounds[name].append(measure(work, args.ranks, args.size, args.seconds))
            finally:
                shutil.rmtree(work)
    for test in rounds["fio"][0]:
        fio, ours = (statistics.median(each[test] for each in rounds[name]) for name in ("fio", "millrace"))
        spread = [f"{min(x[test] for x in each):.4g} to {max(x[test] for x in each):.4g}" for each in rounds.values()]
        print(f"{test:20} fio {fio:.4g} ({spread[0]})  millrace {ours:.4g} ({spread[1]})  ratio {ours / fio:.2f}")


if __name__ == "__main__":
    main()
