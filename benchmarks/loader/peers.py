# SPDX-License-Identifier: Apache-2.0
"""Rows of token ids by Millrace and by its peers, in one run, by CPU time.

    python benchmarks/loader/peers.py --rounds 3

Each side gives all rows of 2,048 ids twice, shuffled, as batches of 8 rows of int64 ids and labels, in a new process
without workers, files in the page cache. CPU is user and system time of the process, threads included, of the second
pass. Sides take turns, and medians are printed. A peer whose package is missing is left out, with a line that says so.

  memmap      rows of a flat file of uint32
  millrace    documents of 64 to 2,048 ids, packed into rows: labels, position ids and a hash a document too
  litdata     litdata.StreamingDataset with its TokensLoader
  mosaic      streaming.StreamingDataset, a row a sample (ndarray of uint32)
  grain       grain.MapDataset over an ArrayRecord file, a row a record
  webdataset  tars with a .npy of a row a sample
  spdl        the same tars by spdl.io.iter_tarfile and load_npy in a Pipeline of one thread
  torchtitan  its HuggingFaceTextDataset (lists of ids, cut into rows, with positions) in a DataLoader, over an Arrow
              dataset of rows; ids are there already, so its tokenizer gives them back

Needs numpy and xxhash.
"""

import argparse
import functools
import importlib.util
import io
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile

from packed import ROWS, SEQ_LEN, cpu_seconds, memmap_batches, millrace_batches, write_sets

# The module of each side, as it is imported.
MODULES = {
    "memmap": "numpy",
    "millrace": "millrace",
    "litdata": "litdata",
    "mosaic": "streaming",
    "grain": "grain",
    "webdataset": "webdataset",
    "spdl": "spdl.io",
    "torchtitan": "torchtitan",
}


def rows_of(folder: pathlib.Path):
    import numpy as np

    flat = np.memmap(folder / "flat.bin", dtype=np.uint32, mode="r")
    return flat[: flat.size // SEQ_LEN * SEQ_LEN].reshape(-1, SEQ_LEN)


def litdata_tokens(folder: pathlib.Path, begin: int):
    import torch

    yield torch.from_numpy(rows_of(folder)[begin : begin + 512].astype("int32").reshape(-1))


def write_litdata(folder: pathlib.Path, out: pathlib.Path) -> None:
    import litdata

    inputs = list(range(0, len(rows_of(folder)), 512))
    make = functools.partial(litdata_tokens, folder)
    loader = litdata.TokensLoader()
    litdata.optimize(make, inputs, str(out), num_workers=1, chunk_size=SEQ_LEN * 4096, item_loader=loader)


def write_mosaic(folder: pathlib.Path, out: pathlib.Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(out), columns={"ids": f"ndarray:uint32:{SEQ_LEN}"}) as writer:
        for row in rows_of(folder):
            writer.write({"ids": row})


def write_grain(folder: pathlib.Path, out: pathlib.Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    out.mkdir()
    writer = ArrayRecordWriter(str(out / "rows.array_record"), "group_size:1,uncompressed")
    for row in rows_of(folder):
        writer.write(row.tobytes())
    writer.close()


def write_webdataset(folder: pathlib.Path, out: pathlib.Path) -> None:
    import numpy as np

    out.mkdir()
    rows = rows_of(folder)
    for shard, begin in enumerate(range(0, len(rows), 4096)):
        with tarfile.open(out / f"{shard:05d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number, row in enumerate(rows[begin : begin + 4096]):
                data = io.BytesIO()
                np.save(data, row)
                member = tarfile.TarInfo(f"{begin + number:08d}.ids.npy")
                member.size = data.tell()
                data.seek(0)
                tar.addfile(member, data)


def write_torchtitan(folder: pathlib.Path, out: pathlib.Path) -> None:
    import datasets

    datasets.Dataset.from_dict({"ids": list(rows_of(folder))}).save_to_disk(str(out))


def batches_of(rows):
    """Batches of rows that come one by one."""
    import numpy as np

    batch = []
    for row in rows:
        batch.append(row)
        if len(batch) == ROWS:
            ids = np.stack(batch).astype(np.int64)
            yield {"input_ids": ids, "labels": ids.copy()}
            batch = []


def litdata_rows(data: pathlib.Path):
    import litdata

    loader = litdata.TokensLoader(block_size=SEQ_LEN)
    for epoch in range(3):
        rows = litdata.StreamingDataset(str(data), item_loader=loader, shuffle=True, seed=epoch)
        for row in rows:
            yield row.numpy()


def mosaic_rows(data: pathlib.Path):
    from streaming import StreamingDataset

    rows = StreamingDataset(local=str(data), shuffle=True, batch_size=ROWS)
    for _ in range(3):
        for row in rows:
            yield row["ids"]


def grain_rows(data: pathlib.Path):
    import grain
    import numpy as np

    source = grain.sources.ArrayRecordDataSource(str(data / "rows.array_record"))
    for record in grain.MapDataset.source(source).shuffle(seed=1).repeat(3):
        yield np.frombuffer(record, np.uint32)


def webdataset_rows(data: pathlib.Path):
    import webdataset as wds

    urls = sorted(str(path) for path in data.iterdir())
    for _ in range(3):
        for sample in wds.WebDataset(urls, shardshuffle=100, empty_check=False).shuffle(1000).decode():
            yield sample["ids.npy"]


def spdl_batches(data: pathlib.Path):
    import numpy as np
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    def rows():  # whole batches at once: each item that goes through a Pipeline costs it as much as a row
        contents = []
        for epoch in range(3):
            shards = sorted(data.iterdir())
            random.Random(epoch).shuffle(shards)
            for path in shards:
                for _, content in spdl.io.iter_tarfile(path.read_bytes()):
                    contents.append(content)
                    if len(contents) == ROWS:
                        yield contents
                        contents = []

    def decode(contents):
        ids = np.stack([spdl.io.load_npy(content) for content in contents]).astype(np.int64)
        return {"input_ids": ids, "labels": ids.copy()}

    pipeline = PipelineBuilder().add_source(rows()).pipe(decode).add_sink(2).build(num_threads=1)
    with pipeline.auto_stop():
        yield from pipeline


class Ids:
    """In the place of a tokenizer: of a row's ids torchtitan's inputs are all but the last one."""

    def encode(self, ids, add_bos, add_eos):
        return [*ids, 0]


def torchtitan_batches(data: pathlib.Path):
    import datasets
    import torch
    from torchtitan.hf_datasets import text_datasets

    text_datasets.DATASETS["rows"] = text_datasets.DatasetConfig(
        path=str(data), loader=datasets.load_from_disk, sample_processor=lambda sample: sample["ids"]
    )
    rows = text_datasets.HuggingFaceTextDataset("rows", str(data), Ids(), seq_len=SEQ_LEN, infinite=True)
    for inputs, labels in torch.utils.data.DataLoader(rows, batch_size=ROWS):
        yield {"input_ids": inputs["input"].numpy(), "labels": labels.numpy()}


WRITE = {
    "litdata": write_litdata,
    "mosaic": write_mosaic,
    "grain": write_grain,
    "webdataset": write_webdataset,
    "spdl": write_webdataset,
    "torchtitan": write_torchtitan,
}
BATCHES_OF = {"spdl": spdl_batches, "torchtitan": torchtitan_batches}
ROWS_OF = {"litdata": litdata_rows, "mosaic": mosaic_rows, "grain": grain_rows, "webdataset": webdataset_rows}


def batches(side: str, folder: pathlib.Path):
    if side == "memmap":
        return memmap_batches(folder)
    if side == "millrace":
        return millrace_batches("bin", folder, 1)
    if side in BATCHES_OF:
        return BATCHES_OF[side](folder / side)
    return batches_of(ROWS_OF[side](folder / side))


def measure(side: str, folder: pathlib.Path) -> dict:
    ids = (folder / "flat.bin").stat().st_size // 4
    begin, passed, taken = 0.0, 0, 0
    for batch in batches(side, folder):
        if passed < ids:
            passed, begin = passed + batch["input_ids"].size, cpu_seconds()
        else:
            taken += batch["input_ids"].size
            if taken >= ids - 2 * ROWS * SEQ_LEN:
                break
    return {"us_per_1000": (cpu_seconds() - begin) / taken * 1e9}


def run_side(what: str, side: str, folder: pathlib.Path) -> str:
    command = [sys.executable, __file__, what, side, "--work", str(folder)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def is_installed(side: str) -> bool:
    try:
        return importlib.util.find_spec(MODULES[side]) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=float, default=4e7, help="ids in each set")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", default=",".join(MODULES))
    parser.add_argument("--work", type=pathlib.Path, help="a folder that keeps the sets (default: a temporary one)")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--write", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.work)))
        return 0
    if args.write:
        WRITE[args.write](args.work, args.work / args.write)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.work or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "flat.bin").exists():
            write_sets(folder, int(args.tokens))
        sides = []
        for side in args.sides.split(","):
            if not is_installed(side):
                print(f"{side}: its package is not installed", file=sys.stderr)
                continue
            if side in WRITE and not (folder / side).exists():
                run_side("--write", side, folder)
            sides.append(side)
        found: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(args.rounds):
            for side in sides:
                found[side].append(json.loads(run_side("--measure", side, folder).splitlines()[-1])["us_per_1000"])
        ours = statistics.median(found.get("millrace", [float("nan")]))
        print("| side | CPU, µs for 1,000 ids | M ids a CPU-second | Millrace takes |\n|---|---|---|---|")
        for side in sides:
            each = statistics.median(found[side])
            print(f"| {side} | {each:.2f} | {1000 / each:.0f} | {ours / each:.2f} of it |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
