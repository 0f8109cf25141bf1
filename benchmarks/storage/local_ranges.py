# SPDX-License-Identifier: Apache-2.0
"""Many small reads of a local file at random places, from Python: `read_ranges` of millrace, `get_ranges` of obstore (without
joining neighbours), and the recipe: `os.pread` in 16 threads.

    python benchmarks/storage/local_ranges.py [DIR] [--mib 2048] [--runs 5] [--count 20000]

DIR should be on the disk in question. 256 ranges a call. Clients take turns; a line is a median. Seconds and CPU are of the
reads alone, without the start of Python. `cold`: the file has left the page cache before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from clients import environment

READ = """
import json, os, random, resource, sys, time
from concurrent.futures import ThreadPoolExecutor
client, path, size, count, seed = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
total = os.path.getsize(path)
places = random.Random(seed)
begins = [places.randrange(total - size) for _ in range(count)]
if client == "millrace":
    import millrace as mr
    file = mr.open(path, buffering=0)
    read = lambda begins: file.read_ranges(begins, [size] * len(begins))
elif client == "obstore":
    import obstore
    from obstore.store import LocalStore
    store = LocalStore(os.path.dirname(path))
    read = lambda begins: obstore.get_ranges(
        store, os.path.basename(path), starts=begins, lengths=[size] * len(begins), coalesce=0)
else:
    file, pool = os.open(path, os.O_RDONLY), ThreadPoolExecutor(16)
    read = lambda begins: list(pool.map(lambda begin: os.pread(file, size, begin), begins))
def cpu(): return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
start, before = time.perf_counter(), cpu()
for i in range(0, count, 256):
    pieces = read(begins[i:i + 256])
    assert sum(map(len, pieces)) == size * len(pieces)
print(json.dumps([time.perf_counter() - start, cpu() - before]))
"""


def drop_from_cache(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", nargs="?", default=tempfile.gettempdir())
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--count", type=int, default=20_000)
    options = parser.parse_args()
    clients = {
        "millrace": sys.executable,
        "obstore": str(environment("obstore") / "python"),
        "os.pread": sys.executable,
    }
    costs = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        path = Path(folder) / "file"
        with path.open("wb") as file:
            for _ in range(options.mib):
                file.write(os.urandom(1 << 20))
        for run in range(options.runs):
            for kib in (4, 16, 64):
                for state in ("cold", "cached"):
                    for client, python in clients.items():
                        drop_from_cache(path)
                        command = [python, "-c", READ, client, str(path), str(kib << 10), str(options.count), str(run)]
                        if state == "cached":
                            path.read_bytes()
                        done = subprocess.run(command, check=True, capture_output=True, text=True)
                        costs[kib, state, client].append(json.loads(done.stdout))
    print(f"| {options.count} ranges | client | 1000/s | CPU us |\n|---|---|---|---|")
    for (kib, state, client), all_runs in costs.items():
        seconds, cpu = (statistics.median(column) for column in zip(*all_runs, strict=True))
        rate, each = options.count / 1000 / seconds, cpu / options.count * 1e6
        print(f"| {kib} KiB, {state} | {client} | {rate:.1f} | {each:.1f} |")


if __name__ == "__main__":
    main()
