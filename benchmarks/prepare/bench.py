#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Text to shards: Millrace beside the field's recipe, and where the time goes.

  recipe    millrace prepare --threads 1         against  tokenizers + webdataset.TarWriter (benchmarks/recipe.py)
  sizes     shards against the text, for each output format
  threads   one thread and all: wall clock, CPU, resident memory, time by stage
  inputs    the same documents as text, jsonl, gzip, zstd and Parquet
  megatron  prepare --format megatron, one thread    against  the steps of Megatron's preprocess_data_fast.py (megatron_fast.py)
  writer    members, hashes, shard and index with ids ready    against  webdataset.TarWriter, and a raw file of as many bytes

Runs alternate, medians of --runs. The recipe reads the first --recipe-mb of the text, and a time is printed only when
our ids and texts of these are equal. Ours counts the whole process with its start, the recipe's its loop only.

    python benchmarks/prepare/bench.py [STAGE ...] [--tokenizers llama3.2,gpt2] [--runs 3] [--work DIR] [--json]
"""

import argparse
import concurrent.futures
import filecmp
import json
import multiprocessing
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tarfile
import time

import corpus

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tokenizer"))
from encode import environment

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MILLRACE = pathlib.Path(sys.executable).parent / "millrace"
OUTPUTS = {
    "text and ids": [],
    "text and raw ids": ["--ids", "raw"],
    "ids only": ["--no-text"],
    "ids only, 256 a block": ["--no-text", "--block", "256"],
    "megatron": ["--format", "megatron"],
}


def apart(function, *args):
    """Calls in another process: the peak of this process's memory counts as that of the processes which it starts."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def run(command) -> dict:
    """Standard output, and the cost of the process."""
    begin = time.perf_counter()
    process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, text=True)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} failed")
    return {
        "out": out,
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "rss_mb": usage.ru_maxrss / 1024,
    }


def median(results: list[dict]) -> dict:
    return {key: statistics.median(r[key] for r in results) for key in results[0] if key != "out"}


class Bench:
    def __init__(self, args):
        self.args = args
        self.work = args.work.resolve()
        self.out = self.work / "out"

    def tokenizer(self, name: str) -> pathlib.Path:
        data = pathlib.Path(os.environ.get("MILLRACE_TEST_DATA", "."))
        return pathlib.Path(name) if name.endswith(".json") else data / "tokenizers" / name / "tokenizer.json"

    def print(self, stage: str, what: str, **values) -> None:
        if self.args.json:
            print(json.dumps({"stage": stage, "what": what, **values}), flush=True)
            return
        shown = "  ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                          for key, value in values.items())  # fmt: skip
        print(f"{stage:8} {what:44} {shown}", flush=True)

    def prepare(self, raw: pathlib.Path, tokenizer: str, *flags, documents="paragraph", threads=1) -> dict:
        shutil.rmtree(self.out, ignore_errors=True)
        command = [MILLRACE, "prepare", raw, "--tokenizer", self.tokenizer(tokenizer), "--out", self.out]
        result = run([*command, "--documents", documents, "--threads", threads, "--quiet", "--json", *flags])
        report = json.loads(result["out"].splitlines()[0])
        keys = ("input_bytes", "documents", "read_seconds", "encode_seconds", "write_seconds")
        result |= {key: report[key] for key in keys}
        result["shard_bytes"] = sum(p.stat().st_size for p in self.out.glob("0*"))
        result["mb_per_cpu_second"] = report["input_bytes"] / result["cpu_seconds"] / 1e6
        return result

    def recipe(self, stage: str, raw: pathlib.Path, tokenizer: str, *flags) -> dict:
        out = self.work / ("recipe.tar" if stage == "write" else "recipe")
        shutil.rmtree(out, ignore_errors=True)
        command = [sys.executable, ROOT / "benchmarks/recipe.py", stage, "--raw", raw, "--documents", "paragraph"]
        done = run([*command, "--tokenizer", self.tokenizer(tokenizer), "--out", out, *flags])
        return json.loads(done["out"])

    def bench_recipe(self, shape: str, tokenizer: str) -> None:
        raw, part = (apart(corpus.make, self.work, shape, mb) for mb in (None, self.args.recipe_mb))
        part_bytes = sum(p.stat().st_size for p in part.iterdir())
        self.prepare(part, tokenizer)
        theirs = [self.recipe("prepare", part, tokenizer)]
        compare(self.out, self.work / "recipe")
        ours, same = [], []
        for i in range(self.args.runs):
            ours.append(self.prepare(raw, tokenizer))
            same.append(self.prepare(part, tokenizer))
            if i > 0:
                theirs.append(self.recipe("prepare", part, tokenizer))
        rate, part_rate = (median(r)["mb_per_cpu_second"] for r in (ours, same))
        recipe = median(theirs)
        recipe_rate = part_bytes / recipe["cpu_seconds"] / 1e6
        self.print("recipe", f"{shape}, {tokenizer}: MB per CPU-second",
                   millrace=rate, recipe=recipe_rate, ratio=rate / recipe_rate,
                   ratio_on_recipes_part=part_rate / recipe_rate, recipe_size=recipe["output_bytes"] / part_bytes,
                   mb=ours[0]["input_bytes"] / 1e6, documents=ours[0]["documents"])  # fmt: skip

    def bench_sizes(self, shape: str, tokenizer: str) -> None:
        raw = apart(corpus.make, self.work, shape, None)
        for what, flags in OUTPUTS.items():
            result = self.prepare(raw, tokenizer, *flags, threads=os.cpu_count())
            self.print(
                "sizes", f"{shape}, {tokenizer}, {what}", times_text=result["shard_bytes"] / result["input_bytes"]
            )

    def bench_threads(self, shape: str, tokenizer: str) -> None:
        raw = apart(corpus.make, self.work, shape, None)
        counts = sorted({1, os.cpu_count()})
        runs = {count: [] for count in counts}
        for _ in range(self.args.runs):
            for count in counts:
                runs[count].append(self.prepare(raw, tokenizer, threads=count))
        for count in counts:
            r = median(runs[count])
            gigabytes = r["input_bytes"] / 1e9
            self.print("threads", f"{shape}, {tokenizer}, {count} threads", mb_per_second=gigabytes * 1e3 / r["seconds"],
                       cpu_seconds_per_gb=r["cpu_seconds"] / gigabytes, rss_mb=r["rss_mb"], read=r["read_seconds"],
                       encode=r["encode_seconds"], write=r["write_seconds"])  # fmt: skip

    def bench_inputs(self, tokenizer: str) -> None:
        raw = apart(corpus.make, self.work, "4kB", None)
        folders = {"text": raw, **apart(corpus.packed, self.work, raw)}
        runs = {name: [] for name in folders}
        for _ in range(self.args.runs):
            for name, folder in folders.items():
                runs[name].append(self.prepare(folder, tokenizer, documents="paragraph" if name == "text" else "jsonl"))
        text_bytes = runs["text"][0]["input_bytes"]
        for name in folders:
            r = median(runs[name])
            self.print("inputs", f"4kB, {tokenizer}, {name}", mb_of_text_per_cpu_second=text_bytes / r["cpu_seconds"] / 1e6,
                       read=r["read_seconds"], encode=r["encode_seconds"], write=r["write_seconds"])  # fmt: skip

    def bench_megatron(self, tokenizer: str) -> None:
        """One file of JSON lines to `.bin` and `.idx`; the bytes must be equal before a time is printed."""
        raw = apart(corpus.packed, self.work, apart(corpus.make, self.work, "4kB", None))["jsonl"]
        source = self.work / "megatron.jsonl"
        with source.open("wb") as joined:
            for path in sorted(raw.iterdir()):
                with path.open("rb") as part:
                    shutil.copyfileobj(part, joined)
        python = environment(self.work, "gigatoken", "gigatoken==0.10.0")
        prefix = self.work / "megatron"
        ours, theirs = [], []
        for _ in range(self.args.runs):
            ours.append(
                self.prepare(source, tokenizer, "--format", "megatron", "--no-special-tokens", documents="jsonl")
            )
            theirs.append(run([python, HERE / "megatron_fast.py", self.tokenizer(tokenizer), source, prefix]))
            for suffix in (".bin", ".idx"):
                (mine,) = self.out.glob(f"*{suffix}")
                if not filecmp.cmp(mine, prefix.with_suffix(suffix), shallow=False):
                    raise SystemExit(f"{mine} differs from what the steps of Megatron's script write")
        mine, other = median(ours), median(theirs)
        self.print("megatron", f"4kB, {tokenizer}, {source.stat().st_size / 1e6:.0f} MB of JSON lines",
                   **{f"{name}_{key}": r[key] for name, r in (("millrace", mine), ("script", other))
                      for key in ("seconds", "cpu_seconds", "rss_mb")},
                   ratio=other["cpu_seconds"] / mine["cpu_seconds"])  # fmt: skip

    def bench_writer(self, shape: str, tokenizer: str) -> None:
        raw = apart(corpus.make, self.work, shape, self.args.recipe_mb)
        program = self.args.build.resolve() / "benchmarks/prepare/millrace_prepare_writer"
        ninja = pathlib.Path(sys.executable).parent / "ninja"
        subprocess.run([ninja, "-C", self.args.build, "--quiet", "millrace_prepare_writer"], check=True)
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        ours, theirs = [], {"npy": [], "json": []}
        for _ in range(self.args.runs):
            lines = run([program, self.tokenizer(tokenizer), self.out, 5, *sorted(raw.iterdir())])["out"].splitlines()
            ours += [json.loads(line) for line in lines]
            for ids, results in theirs.items():
                results.append(self.recipe("write", raw, tokenizer, "--ids", ids))
        mine = median(ours)
        peers = {ids: median(results) for ids, results in theirs.items()}
        self.print("writer", f"{shape}, {tokenizer}: CPU-seconds", millrace=mine["cpu_seconds"],
                   raw_file=mine["raw_cpu_seconds"],
                   of_raw=statistics.median(r["raw_cpu_seconds"] / r["cpu_seconds"] for r in ours),
                   of_raw_by_the_clock=statistics.median(r["raw_seconds"] / r["seconds"] for r in ours),
                   gb_per_cpu_second=mine["bytes"] / mine["cpu_seconds"] / 1e9,
                   **{f"times_tarwriter_{ids}": r["cpu_seconds"] / mine["cpu_seconds"] for ids, r in peers.items()})  # fmt: skip


def samples(folder: pathlib.Path):
    """(text, ids) of the shards of a folder."""
    import io

    import numpy

    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            sample = {}
            for member in tar:
                sample[member.name.split(".", 1)[1]] = tar.extractfile(member).read()
                if len(sample) == 2:
                    array = sample.get("token_ids.npy")
                    ids = numpy.load(io.BytesIO(array)).tolist() if array else json.loads(sample["token_ids.json"])
                    yield sample["text.txt"], ids
                    sample = {}


def compare(ours: pathlib.Path, theirs: pathlib.Path) -> None:
    for i, (mine, other) in enumerate(zip(samples(ours), samples(theirs), strict=True)):
        if mine != other:
            raise SystemExit(f"sample {i} differs from the recipe's")


def main() -> None:
    stages = ("recipe", "sizes", "threads", "inputs", "megatron", "writer")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(stages))
    parser.add_argument(
        "--tokenizers", default="llama3.2,gpt2", help="folders of MILLRACE_TEST_DATA/tokenizers, or files"
    )
    parser.add_argument("--shapes", default=",".join(corpus.SHAPES))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--recipe-mb", type=float, default=20)
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/bench")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/dev")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    args = parser.parse_args()
    if unknown := set(args.stages) - set(stages):
        parser.error(f"no such stage: {', '.join(sorted(unknown))}")
    bench = Bench(args)
    tokenizers = args.tokenizers.split(",")
    for stage in args.stages or stages:
        if stage == "inputs":
            bench.bench_inputs(tokenizers[0])
            continue
        if stage == "megatron":
            for tokenizer in tokenizers:
                bench.bench_megatron(tokenizer)
            continue
        for tokenizer in tokenizers:
            for shape in args.shapes.split(","):
                getattr(bench, f"bench_{stage}")(shape, tokenizer)


if __name__ == "__main__":
    main()
