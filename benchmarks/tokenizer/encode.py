#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Encoding beside the fastest tokenizers there are: the same text, one core, in one run.

Builds a missing corpus (corpus.py), installs each peer in its own environment, alternates the engines, and prints
medians. Marks an engine that gives other ids. One thread; CPU time, because wall time varies on shared machines.

    python benchmarks/tokenizer/encode.py [--tokenizers llama3.2,gpt2] [--mb 100] [--runs 3] [--work DIR] [--json]
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
FLAVOURS = ("prose", "code", "multilingual")
PEERS = {
    "gigatoken": ("gigatoken", "gigatoken==0.10.0"),
    "fastokens": ("fastokens", "fastokens==0.3.5"),
    "tokenizers 1.0rc3": ("tokenizers", "tokenizers==1.0.0rc3"),
    "tokenizers 0.23.3": ("tokenizers", "tokenizers==0.23.3"),
    "tokie": ("tokie", "tokie==0.1.4"),
    "snaptokens": ("snaptokens", "snaptokens==0.2.6"),
    "splintr": ("splintr", "splintr-rs==0.22.0"),
    "nanotoken": ("nanotoken", "nanotoken==0.1.0"),
}
# The first two read only BPE, nanotoken only WordPiece.
DEFAULT_PEERS = "gigatoken,fastokens,tokenizers 1.0rc3,tokenizers 0.23.3"
SLOW = "tokenizers 0.23.3"


def environment(work, name, requirement):
    """The Python of a peer's environment, made on first use."""
    folder = work / "peers" / name.replace(" ", "-")
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"installing {requirement}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--pre", requirement]
        subprocess.run([*command, "numpy"], check=True)
        (folder / "ready").touch()
    return python


def measure(python, engine, tokenizer, corpus, megabytes):
    command = [str(python), str(HERE / "engines.py"), engine, str(tokenizer), str(corpus), str(megabytes)]
    cpu = str(min(os.sched_getaffinity(0)))
    done = subprocess.run(["taskset", "-c", cpu, *command], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def compare(tokenizer, flavour, work, args):
    """Medians of each engine, and whether its ids are ours."""
    engines = {"millrace": (pathlib.Path(sys.executable), "millrace")}
    for name in args.peers.split(","):
        engine, requirement = PEERS[name]
        engines[name] = (environment(work, name, requirement), engine)
    corpus = work / "corpus" / f"{flavour}.jsonl"
    runs = {name: [] for name in engines}
    for _ in range(args.runs):
        for name, (python, engine) in list(engines.items()):
            megabytes = min(args.mb, args.slow_mb) if name == SLOW else args.mb
            try:
                runs[name].append(measure(python, engine, tokenizer, corpus, megabytes))
            except subprocess.CalledProcessError:
                print(f"{name} does not take {tokenizer}", file=sys.stderr)
                del engines[name], runs[name]
    short = measure(*engines["millrace"], tokenizer, corpus, min(args.mb, args.slow_mb))
    rows = {}
    for name, results in runs.items():
        expected = short if name == SLOW else runs["millrace"][0]
        rows[name] = {
            key: statistics.median(r[key] for r in results) for key in ("load_s", "first", "second", "rss_mb")
        }
        rows[name]["same_ids"] = all(result["hash"] == expected["hash"] for result in results)
    return rows


def show(name, flavour, rows, megabytes):
    print(f"\n{name}, {flavour}, {megabytes} MB at most: MB per CPU-second of the first and the second pass")
    ours = rows["millrace"]
    for engine, row in rows.items():
        ratios = f"{ours['first'] / row['first']:6.2f}x {ours['second'] / row['second']:6.2f}x"
        print(
            f"  {engine:20} {row['first']:7.1f} {row['second']:7.1f}   {ratios}   load {row['load_s'] * 1e3:5.0f} ms"
            f"   {row['rss_mb']:6.0f} MB resident{'' if row['same_ids'] else '   OTHER IDS'}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tokenizers", default="llama3.2,gpt2", help="folders of MILLRACE_TEST_DATA/tokenizers, or files"
    )
    parser.add_argument("--peers", default=DEFAULT_PEERS, help="of " + ", ".join(PEERS))
    parser.add_argument("--flavours", default=",".join(FLAVOURS))
    parser.add_argument("--mb", type=float, default=100)
    parser.add_argument("--slow-mb", type=float, default=5, help=f"as much as {SLOW} gets (default %(default)s)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/bench"), help="default %(default)s")
    parser.add_argument("--json", action="store_true", help="one object a line")
    args = parser.parse_args()
    work = args.work.resolve()
    if not (work / "corpus" / "multilingual.jsonl").exists():
        subprocess.run([sys.executable, str(HERE / "corpus.py"), str(work / "corpus")], check=True)
    for name in args.tokenizers.split(","):
        data = pathlib.Path(os.environ.get("MILLRACE_TEST_DATA", "."))
        path = pathlib.Path(name) if name.endswith(".json") else data / "tokenizers" / name / "tokenizer.json"
        if not path.exists():
            parser.error(f"no {path}: set MILLRACE_TEST_DATA, or name a tokenizer.json")
        for flavour in args.flavours.split(","):
            rows = compare(path, flavour, work, args)
            if args.json:
                print(json.dumps({"tokenizer": name, "flavour": flavour, "engines": rows}), flush=True)
            else:
                show(name, flavour, rows, args.mb)


if __name__ == "__main__":
    main()
