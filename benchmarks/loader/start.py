# SPDX-License-Identifier: Apache-2.0
"""How long does a run wait for its first batch, at its start and when it resumes?

    python benchmarks/loader/start.py

Token shards of equal documents of 20 ids in a folder with a manifest, files in the page cache. Each number is a new
process, without the imports:

  small       1,000 documents in one shard: from Loader() to the first batch of 8 rows
  resume      --documents documents in shards of 100,000: from Loader() over load_state_dict() of step --step to the
              batch there

Both are padded batches; packed ones of very many documents are in documents.py. Needs numpy and xxhash.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from documents import IDS, write_shard

ROWS, SEQ_LEN = 8, 64
SHARD_DOCUMENTS = 100_000


def make_folder(folder: pathlib.Path, documents: int) -> str:
    """Shards that hold `documents` together, one file under many names, and their manifest (docs/format/manifest.md)."""
    import xxhash

    if (folder / "manifest.json").exists():
        return str(folder)
    folder.mkdir(parents=True)
    each = min(documents, SHARD_DOCUMENTS)
    original = folder / "00000.bin"
    write_shard(original, each)
    index = pathlib.Path(f"{original}.index")
    names = [f"{number:05}.bin" for number in range(documents // each)]
    for name in names[1:]:
        os.link(original, folder / name)
        os.link(index, folder / f"{name}.index")
    zeros = ("block_documents", "max_bytes", "max_tokens", "min_bytes", "min_tokens", "shard_bytes")
    false = ("dedup", "refuse_control_text", "strict_utf8", "text")
    config = dict.fromkeys(zeros, 0) | dict.fromkeys(false, False) | dict.fromkeys(("bos", "chat", "eos"), "")
    config |= {"add_special_tokens": True, "documents": "line", "ids_field": "u16", "max_document_bytes": 1 << 26}
    config |= {"on_error": "fail", "output": "webdataset", "tasks": 1, "text_field": "text", "tokenizer_hash": "0" * 32}
    facts = {"samples": each, "tokens": each * IDS, "size": original.stat().st_size}
    facts |= {
        "hash": xxhash.xxh3_128_hexdigest(original.read_bytes()),
        "index_hash": xxhash.xxh3_128_hexdigest(index.read_bytes()),
    }
    body = {"config": config, "shards": [{"name": name, **facts} for name in names], "documents": documents}
    body |= {"tokens": documents * IDS, "input_bytes": 0, "format": "millrace.manifest", "version": 1}
    body |= dict.fromkeys(("duplicates", "filtered", "invalid_utf8", "rejected"), 0)
    sealed = json.dumps(body, sort_keys=True, separators=(",", ":"))
    body["checksum"] = xxhash.xxh3_128_hexdigest(sealed.encode())
    (folder / "manifest.json").write_text(json.dumps(body, sort_keys=True, indent=2) + "\n")
    return str(folder)


def measure(shards: str, state: str, step: int) -> dict[str, float]:
    import numpy as np

    import millrace as mr

    np.zeros(1)
    options = {"batch_size": ROWS, "seq_len": SEQ_LEN, "collate": "pad", "seed": 1, "rank": 0, "world_size": 1}
    if state == "make":
        with mr.Loader(shards, **options) as loader:
            next(loader)
            return loader.state_dict() | {"position": step * ROWS}
    begin = time.perf_counter()
    with mr.Loader(shards, **options) as loader:
        if state:
            loader.load_state_dict(json.loads(state))
        next(loader)
        return {"seconds": time.perf_counter() - begin}


def in_new_process(shards: str, state: str, step: int) -> dict:
    command = [sys.executable, __file__, "--measure", shards, "--state", state, "--step", str(step)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=float, default=1e8)
    parser.add_argument("--step", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--work", type=pathlib.Path, help="a folder that keeps the shards (default: a temporary one)")
    parser.add_argument("--measure", metavar="SHARDS", help=argparse.SUPPRESS)
    parser.add_argument("--state", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.state, args.step)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.work or pathlib.Path(temporary)
        small, large = make_folder(folder / "small", 1000), make_folder(folder / "large", int(args.documents))
        state = json.dumps(in_new_process(large, "make", args.step))
        print("| | median, s | least | most |\n|---|---|---|---|")
        for name, shards, at in (("small", small, ""), ("resume", large, state)):
            times = [in_new_process(shards, at, args.step)["seconds"] for _ in range(args.runs)]
            print(f"| {name} | {statistics.median(times):.3f} | {min(times):.3f} | {max(times):.3f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
