# SPDX-License-Identifier: Apache-2.0
"""Packed batches beside a NumPy memmap of the same ids, by CPU time.

    python benchmarks/loader/packed.py --rounds 5
    python benchmarks/loader/packed.py --rounds 7 --sides bin,mix2,mix4,mix8

Documents of random length (64 to 2,048 ids) as files of uint32, in the page cache. Every side takes all ids twice as
batches of 8 rows of 2,048 ids, int64, in a new process; sides take turns, and medians are printed. CPU is user and system
time of the process, threads included, of the second pass: the first one touches all memory for the first time.

  memmap        rows of a flat file in random order: input_ids, and labels as a copy. Documents are not known
  millrace bin  token shards with an index: input_ids, labels (-100 at the start of a document) and position_ids from
                shuffled documents, each held against its hash
  millrace tar  the same from tars with a .npy of ids a document
  mix2, ...     the token shards as 2, ... datasets of equal weight

Needs numpy and xxhash.
"""

import argparse
import io
import json
import pathlib
import resource
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile

ROWS, SEQ_LEN, VOCABULARY = 8, 2048, 128_000
SHARDS = 8


def write_index(path: pathlib.Path, lengths, offsets, documents) -> None:
    """The index of a token shard (docs/format/shard_index.md)."""
    import numpy as np
    import xxhash

    header = struct.pack("<8sIIQQ", b"MLRINDEX", 1, 88, path.stat().st_size, len(lengths))
    header += xxhash.xxh3_128_digest(path.read_bytes()) + bytes(16)
    header += struct.pack("<IIII", 3, 2, 1, 0) + b"u32{}"
    columns = [
        np.asarray(offsets, dtype="<u8"),
        np.asarray(lengths, dtype="<u8") * 4,
        np.asarray([xxhash.xxh3_64_intdigest(document.tobytes()) for document in documents], dtype="<u8"),
        np.asarray(lengths, dtype="<u4"),
    ]
    checksum = xxhash.xxh3_128()
    with open(f"{path}.index", "wb") as index:
        for part in [header.ljust(88, b"\0"), *(c.tobytes() for c in columns), bytes(-4 * len(lengths) % 8)]:
            checksum.update(part)
            index.write(part)
        index.write(checksum.digest())


def write_sets(folder: pathlib.Path, tokens: int) -> int:
    """The same documents as one flat file, token shards and tars. Returns the number of ids."""
    import numpy as np

    random = np.random.default_rng(1)
    all_ids, number = [], 0
    (folder / "bin").mkdir()
    (folder / "tar").mkdir()
    for shard in range(SHARDS):
        lengths = random.integers(64, SEQ_LEN + 1, size=tokens // SHARDS // (SEQ_LEN // 2))
        documents = [random.integers(0, VOCABULARY, size=n, dtype=np.uint32) for n in lengths]
        flat = np.concatenate(documents)
        all_ids.append(flat)
        path = folder / f"bin/{shard:05d}.bin"
        flat.tofile(path)
        write_index(path, lengths, (np.cumsum(lengths) - lengths) * 4, documents)
        with tarfile.open(folder / f"tar/{shard:05d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for document in documents:
                data = io.BytesIO()
                np.save(data, document)
                member = tarfile.TarInfo(f"{number:08d}.token_ids.npy")
                member.size = data.tell()
                data.seek(0)
                tar.addfile(member, data)
                number += 1
    flat = np.concatenate(all_ids)
    flat.tofile(folder / "flat.bin")
    return flat.size


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def memmap_batches(folder: pathlib.Path):
    import numpy as np

    flat = np.memmap(folder / "flat.bin", dtype=np.uint32, mode="r")
    begins = np.random.default_rng(2).permutation(flat.size // SEQ_LEN) * SEQ_LEN
    begins = np.concatenate([begins, begins[::-1]])
    for at in range(0, len(begins) - ROWS + 1, ROWS):
        ids = np.stack([flat[begin : begin + SEQ_LEN] for begin in begins[at : at + ROWS]]).astype(np.int64)
        yield {"input_ids": ids, "labels": ids.copy()}


def millrace_batches(side: str, folder: pathlib.Path, threads: int):
    import millrace as mr

    def names(kind: str, first: int, end: int) -> str:
        return f"{folder}/{kind}/{{{first:05d}..{end - 1:05d}}}.{kind}"

    data = names("bin" if side.startswith("mix") else side, 0, SHARDS)
    if side.startswith("mix"):
        each = SHARDS // int(side[3:])
        data = [mr.Source(names("bin", first, first + each), weight=1) for first in range(0, SHARDS, each)]
    options = {"batch_size": ROWS, "seq_len": SEQ_LEN, "collate": "pack", "seed": 1, "rank": 0}
    with mr.Loader(data, world_size=1, num_threads=threads, **options) as loader:
        yield from loader


def measure(side: str, folder: pathlib.Path, threads: int) -> dict:
    batches = memmap_batches(folder) if side == "memmap" else millrace_batches(side, folder, threads)
    ids = (folder / "flat.bin").stat().st_size // 4
    begin, passed, taken = 0.0, 0, 0
    for batch in batches:
        if passed < ids:
            passed, begin = passed + batch["input_ids"].size, cpu_seconds()
        else:
            taken += batch["input_ids"].size
            if taken >= ids - ROWS * SEQ_LEN:
                break
    return {"us_per_1000": (cpu_seconds() - begin) / taken * 1e9}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=float, default=8e7, help="ids in each set")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sides", default="memmap,bin,tar", help="the others are compared with the first")
    parser.add_argument("--work", type=pathlib.Path, help="a folder that keeps the sets (default: a temporary one)")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.work, args.threads)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.work or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "flat.bin").exists():
            write_sets(folder, int(args.tokens))
        sides = args.sides.split(",")
        found: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(args.rounds):
            for side in sides:
                command = [
                    sys.executable,
                    __file__,
                    "--measure",
                    side,
                    "--work",
                    folder,
                    "--threads",
                    str(args.threads),
                ]
                done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True)
                found[side].append(json.loads(done.stdout)["us_per_1000"])
        base = statistics.median(found[sides[0]])
        print(f"| side | CPU, µs for 1,000 ids | M ids a CPU-second | beside {sides[0]} |\n|---|---|---|---|")
        for side in sides:
            each = statistics.median(found[side])
            print(f"| {side} | {each:.2f} | {1000 / each:.0f} | {base / each:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
