# SPDX-License-Identifier: Apache-2.0
"""The cost of the loader against the number of documents.

    python benchmarks/loader/documents.py --documents 1e5,1e6,1e7,1e8

The documents are equal and tiny (20 ids of 2 bytes), so that their number decides. A file of at most 10 million of them
with its index is made once and linked under further names: 0.7 GB on disk for any number.
Each row is a new process that packs rows of 2,048 tokens with one thread and takes 200 batches of 8 rows from shuffled
windows all over the dataset:

  start       wall seconds to the first batch: every index read and verified, lengths summed, windows shuffled
  CPU         microseconds of user and system time for 1,000 tokens, of the 200 batches alone
  peak        resident memory of the process at most, with Python and NumPy
  over        the memory that the loader added to it
  resume      wall seconds from load_state_dict() in the middle of the epoch to the batch there

Needs the packages numpy and xxhash.
"""

import argparse
import json
import os
import pathlib
import resource
import struct
import subprocess
import sys
import tempfile
import time

IDS = 20
SHARD_DOCUMENTS = 10_000_000
BATCHES = 200
ROWS, SEQ_LEN = 8, 2048


def write_shard(path: pathlib.Path, documents: int) -> None:
    """A token shard of equal documents, and its index (docs/format/shard_index.md)."""
    import numpy as np
    import xxhash

    document = np.arange(IDS, dtype="<u2")
    size = document.nbytes
    np.tile(document, documents).tofile(path)
    header = struct.pack("<8sIIQQ", b"MLRINDEX", 1, 88, documents * size, documents)
    header += xxhash.xxh3_128_digest(path.read_bytes()) + bytes(16)
    header += struct.pack("<IIII", 3, 2, 1, 0) + b"u16{}"
    columns = [
        np.arange(documents, dtype="<u8") * size,
        np.full(documents, size, dtype="<u8"),
        np.full(documents, xxhash.xxh3_64_intdigest(document.tobytes()), dtype="<u8"),
        np.full(documents, IDS, dtype="<u4"),
    ]
    checksum = xxhash.xxh3_128()
    with open(f"{path}.index", "wb") as index:
        for part in [header.ljust(88, b"\0"), *(column.tobytes() for column in columns), bytes(-4 * documents % 8)]:
            checksum.update(part)
            index.write(part)
        index.write(checksum.digest())


def make_shards(folder: pathlib.Path, documents: int) -> str:
    """A pattern of shards that hold `documents` together."""
    count = max(1, documents // SHARD_DOCUMENTS)
    each = documents // count
    original = folder / f"{each}.bin"
    if not original.exists():
        write_shard(original, each)
    names = [f"{each}-{i}.bin" for i in range(count)]
    for name in names:
        for suffix in ("", ".index"):
            link = folder / (name + suffix)
            if not link.exists():
                os.link(f"{original}{suffix}", link)
    return f"{folder}/{each}-{{0..{count - 1}}}.bin" if count > 1 else f"{folder}/{names[0]}"


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_bytes() -> int:
    # Not ru_maxrss, which starts at the parent's value.
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def measure(shards: str, collate: str) -> dict:
    import numpy  # noqa: F401 - counted before the loader's own memory

    import millrace as mr

    before = peak_bytes()
    start = time.perf_counter()
    loader = mr.Loader(
        shards,
        batch_size=ROWS,
        seq_len=SEQ_LEN,
        collate=collate,
        shuffle=True,
        seed=1,
        num_threads=1,
        rank=0,
        world_size=1,
    )
    next(loader)
    started = time.perf_counter() - start
    begin, tokens = cpu_seconds(), loader.stats()["tokens"]
    for _ in range(BATCHES):
        next(loader)
    tokens = loader.stats()["tokens"] - tokens
    used = cpu_seconds() - begin
    middle = loader.state_dict() | {"position": loader.epoch_units // 2}
    start = time.perf_counter()
    loader.load_state_dict(middle)
    next(loader)
    resumed = time.perf_counter() - start
    loader.close()
    return {
        "start_s": started,
        "us_per_1000_tokens": used / tokens * 1e9,
        "peak": peak_bytes(),
        "over": peak_bytes() - before,
        "resume_s": resumed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", default="1e5,1e6,1e7", help="comma-separated numbers of documents")
    parser.add_argument("--collate", default="pack", choices=["pack", "pad"])
    parser.add_argument(
        "--work", type=pathlib.Path, help="where the shards are made and kept (default: a temporary folder)"
    )
    parser.add_argument("--measure", metavar="SHARDS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.collate)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.work or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        print(
            "| documents | start, s | CPU, µs for 1,000 tokens | peak, MB | over, MB | resume, s |\n|---|---|---|---|---|---|"
        )
        for documents in [int(float(word)) for word in args.documents.split(",")]:
            command = [sys.executable, __file__, "--collate", args.collate, "--measure", make_shards(folder, documents)]
            row = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
            print(
                f"| {documents:,} | {row['start_s']:.2f} | {row['us_per_1000_tokens']:.1f} "
                f"| {row['peak'] / 1e6:.0f} | {row['over'] / 1e6:.0f} | {row['resume_s']:.3f} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
