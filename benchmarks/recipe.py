# SPDX-License-Identifier: Apache-2.0
"""The field's usual way to do the stages of the main job, as main_job.py measures it: one Python process a task with
`tokenizers` and webdataset's TarWriter, webdataset with DataLoader workers, torch.save.

Run as `recipe.py STAGE ...`; prints one JSON object: seconds and cpu_seconds of the work, without imports and the
loading of the tokenizer.
"""

import argparse
import json
import os
import pathlib
import resource
import time


def cpu_seconds() -> float:
    """User and system time of this process and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in usages)


def documents(path: pathlib.Path, mode: str):
    text = path.read_text(encoding="utf-8")
    for piece in text.split("\n\n") if mode == "paragraph" else text.split("\n"):
        piece = piece.strip("\n")
        if piece.strip():
            yield piece


def prepare(args) -> dict:
    import webdataset
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(args.tokenizer)
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    samples = tokens = 0
    begin, cpu = time.perf_counter(), cpu_seconds()
    for shard, path in enumerate(sorted(pathlib.Path(args.raw).iterdir())):
        with webdataset.TarWriter(str(out / f"shard-{shard:05d}.tar")) as sink:
            for i, text in enumerate(documents(path, args.documents)):
                ids = tokenizer.encode(text, add_special_tokens=True).ids
                sink.write({"__key__": f"sample_{shard}_{i:08d}", "token_ids.json": ids, "text.txt": text})
                samples += 1
                tokens += len(ids)
    return {
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": cpu_seconds() - cpu,
        "samples": samples,
        "tokens": tokens,
        "output_bytes": sum(p.stat().st_size for p in out.iterdir()),
    }


def write(args) -> dict:
    """The writer alone: the output of `prepare`, from ready ids."""
    import numpy
    import webdataset
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(args.tokenizer)
    samples = []
    for path in sorted(pathlib.Path(args.raw).iterdir()):
        for text in documents(path, args.documents):
            ids = tokenizer.encode(text, add_special_tokens=True).ids
            ids = numpy.array(ids, dtype=numpy.uint32) if args.ids == "npy" else ids
            samples.append({"__key__": f"sample_{len(samples):08d}", f"token_ids.{args.ids}": ids, "text.txt": text})
    begin, cpu = time.perf_counter(), cpu_seconds()
    with webdataset.TarWriter(args.out) as sink:
        for sample in samples:
            sink.write(sample)
    with open(args.out, "rb") as file:
        os.fsync(file.fileno())
    return {
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": cpu_seconds() - cpu,
        "samples": len(samples),
        "output_bytes": os.path.getsize(args.out),
    }


class PadCollate:
    """The least a collator can do: cut, pad, mask. (transformers' own costs three times as much.)"""

    def __init__(self, seq_len: int):
        self.seq_len = seq_len

    def __call__(self, samples):
        import torch

        ids = torch.zeros((len(samples), self.seq_len), dtype=torch.int64)
        labels = torch.full_like(ids, -100)
        mask = torch.zeros_like(ids)
        for row, sample in enumerate(samples):
            values = torch.as_tensor(sample["token_ids.json"][: self.seq_len], dtype=torch.int64)
            ids[row, : len(values)] = values
            labels[row, : len(values)] = values
            mask[row, : len(values)] = 1
        return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def load(args) -> dict:
    import torch
    import webdataset

    shards = [str(p) for p in sorted(pathlib.Path(args.shards).glob("*.tar"))]
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=1).shuffle(1000).decode()
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=args.batch_size, num_workers=args.workers, collate_fn=PadCollate(args.seq_len)
    )
    tokens = batches = 0
    begin, cpu = time.perf_counter(), cpu_seconds()
    for batch in loader:
        tokens += int(batch["attention_mask"].sum())
        batches += 1
    del loader
    return {
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": cpu_seconds() - cpu,
        "tokens": tokens,
        "batches": batches,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    stages = parser.add_subparsers(dest="stage", required=True)
    p = stages.add_parser("prepare")
    p.add_argument("--raw", required=True)
    p.add_argument("--tokenizer", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--documents", default="line")
    p = stages.add_parser("write")
    p.add_argument("--raw", required=True)
    p.add_argument("--tokenizer", required=True)
    p.add_argument("--out", required=True, help="a file")
    p.add_argument("--documents", default="line")
    p.add_argument("--ids", default="json")
    p = stages.add_parser("load")
    p.add_argument("--shards", required=True)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--seq-len", type=int, default=256)
    p.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    print(json.dumps({"prepare": prepare, "write": write, "load": load}[args.stage](args)))


if __name__ == "__main__":
    main()
