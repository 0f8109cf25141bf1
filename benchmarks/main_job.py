# SPDX-License-Identifier: Apache-2.0
"""The stages of the main job beside the field's usual recipe, on the same text in one run. `./dev bench` runs it.

  prepare   millrace prepare                     against  tokenizers + webdataset.TarWriter, one process
  load      millrace.Loader                      against  webdataset + DataLoader, with 0 and 2 workers
  save      the stop of training for a save      against  torch.save + fsync

Runs alternate; medians of --runs. Ratios of prepare and load are per CPU-second (user + system, all processes),
because wall time varies on shared machines. For prepare, ours counts the whole process with its start, the recipe's
its loop only. For load, imports are left out on both sides.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = ROOT / "examples/data/austen"


def run(command: list[str]) -> tuple[str, float]:
    """Standard output and the CPU seconds of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def recipe(*arguments: str) -> dict:
    return json.loads(run([sys.executable, str(ROOT / "benchmarks/recipe.py"), *arguments])[0])


def train_tokenizer(files: list[pathlib.Path], path: pathlib.Path) -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    from demo import train_tokenizer as train

    train(files, path)


def bench_prepare(raw, tokenizer, work, mode, ids, runs) -> dict:
    text_bytes = sum(p.stat().st_size for p in raw.iterdir())
    ours, theirs = [], []
    for _ in range(runs):
        out = work / "ours"
        shutil.rmtree(out, ignore_errors=True)
        command = ["millrace", "prepare", str(raw), "--tokenizer", str(tokenizer), "--out", str(out), "--quiet"]
        ours.append(run([*command, "--documents", mode, "--ids", ids, "--threads", "1"])[1])
        shutil.rmtree(work / "recipe", ignore_errors=True)
        result = recipe(
            *("prepare", "--raw", str(raw), "--tokenizer", str(tokenizer), "--out", str(work / "recipe")),
            *("--documents", mode),
        )
        theirs.append(result["cpu_seconds"])
    mine, other = statistics.median(ours), statistics.median(theirs)
    return {
        "stage": f"prepare, a {mode} a sample, {ids} ids",
        "unit": "MB of text per CPU-second",
        "millrace": text_bytes / mine / 1e6,
        "recipe": text_bytes / other / 1e6,
        "ratio": other / mine,
    }


LOAD_OURS = """
import json, resource, sys
import logging
import numpy
import millrace as mr
logging.disable(logging.WARNING)  # the recipe's shards have no index, which is said once a shard
def cpu():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime
begin = cpu()
with mr.Loader(sys.argv[1], batch_size=8, seq_len=256, collate="pad", epochs=1, drop_last=False, seed=1, num_threads=1) as loader:
    tokens = sum(int(batch["attention_mask"].sum()) for batch in loader)
print(json.dumps({"cpu_seconds": cpu() - begin, "tokens": tokens}))
"""


def bench_load(work, workers, ours_shards, label, runs) -> dict:
    ours, theirs = [], []
    for _ in range(runs):
        mine = json.loads(run([sys.executable, "-c", LOAD_OURS, str(ours_shards)])[0])
        other = recipe("load", "--shards", str(work / "recipe"), "--workers", str(workers))
        if mine["tokens"] != other["tokens"]:
            raise SystemExit(f"the loaders disagree: {mine['tokens']} and {other['tokens']} tokens")
        ours.append(mine["tokens"] / mine["cpu_seconds"] / 1e6)
        theirs.append(other["tokens"] / other["cpu_seconds"] / 1e6)
    mine, other = statistics.median(ours), statistics.median(theirs)
    return {
        "stage": f"load, {label}, DataLoader with {workers} workers",
        "unit": "M tokens per CPU-second",
        "millrace": mine,
        "recipe": other,
        "ratio": mine / other,
    }


def bench_save(work, megabytes, runs) -> dict:
    import torch

    import millrace as mr

    torch.manual_seed(0)
    count = 64
    elements = megabytes * 1_000_000 // 4 // count
    state = {f"layer{i}.weight": torch.randn(elements) for i in range(count)}
    stalls, saves = [], []
    with mr.torch.Checkpointer(str(work / "checkpoints"), keep_last=1) as checkpointer:
        for step in range(1, runs + 2):
            begin = time.perf_counter()
            save = checkpointer.save(step, {"model": state})
            stall = time.perf_counter() - begin
            save.wait()
            path = work / "torch.pt"
            begin = time.perf_counter()
            with open(path, "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            took = time.perf_counter() - begin
            if step > 1:  # the first save touches its memory for the first time
                stalls.append(stall)
                saves.append(took)
            path.unlink()
    mine, other = statistics.median(stalls), statistics.median(saves)
    return {
        "stage": f"save, {megabytes} MB: the stop of training",
        "unit": "ms",
        "millrace": mine * 1e3,
        "recipe": other * 1e3,
        "ratio": other / mine,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--save-mb", type=int, default=400)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--list", action="store_true", help="only name the stages")
    args = parser.parse_args()
    if args.list:
        print("prepare\nload\nsave")
        return
    os.environ["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=ROOT / "build") as folder:
        work = pathlib.Path(folder)
        raw, tokenizer = work / "raw", work / "tokenizer.json"
        raw.mkdir()
        files = sorted(TEXT.glob("*.txt"))
        for path in files:
            shutil.copy(path, raw)
        train_tokenizer(files, tokenizer)
        for mode, ids in (("line", "json"), ("line", "npy"), ("paragraph", "json"), ("paragraph", "npy")):
            rows.append(bench_prepare(raw, tokenizer, work, mode, ids, args.runs))
        # The last runs left paragraphs: json ids in recipe/, npy ids in ours/. Both loaders read the same text.
        for workers in (0, 2):
            rows.append(bench_load(work, workers, work / "ours", "npy ids against json ids", args.runs))
        rows.append(bench_load(work, 2, work / "recipe", "the recipe's own shards", args.runs))
        rows.append(bench_save(work, args.save_mb, args.runs))
    for row in rows:
        if args.json:
            print(json.dumps(row))
        else:
            print(
                f"{row['stage']:<62} {row['millrace']:>9.4g} {row['recipe']:>9.4g} {row['unit']:<26} {row['ratio']:>6.1f}x"
            )


if __name__ == "__main__":
    main()
