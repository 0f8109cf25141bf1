# SPDX-License-Identifier: Apache-2.0
"""Writes a small file of every format with the Millrace that is installed: `python tests/golden/make.py tests/golden/V`.

Run it once for each release that changes a format, with the version's number as V, and commit what it writes. What is
there never changes: the tests read every folder with today's code.
"""

from __future__ import annotations

import array
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import xxhash
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import millrace as mr
from millrace import _core

FOLDER = "/GOLDEN"  # stands for where a link was declared
LINES = ["the first document", "another one", "naïve café", "a fourth with more words in it", "five"]


def tokenizer() -> None:
    """Bytes of UTF-8 as ids, and one token for the end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|end|>"])
    made.save("tokenizer.json")


def millrace(*arguments: str) -> None:
    subprocess.run(["millrace", *arguments], check=True, stdout=subprocess.DEVNULL)


def prepared() -> None:
    Path("raw").mkdir()
    Path("raw/a.txt").write_text("\n".join(LINES[:3]) + "\n")
    Path("raw/b.txt").write_text("\n".join(LINES[3:]) + "\n")
    kinds = {
        "tar": [],
        "blocks": ["--block", "2"],
        "megatron": ["--format", "megatron"],
        "tokens": ["--format", "tokens"],
    }
    for name, flags in kinds.items():
        for task in ("0/2", "1/2"):
            millrace(
                "prepare",
                "raw",
                "--tokenizer",
                "tokenizer.json",
                "--eos",
                "<|end|>",
                "--out",
                name,
                "--task",
                task,
                *flags,
            )
        millrace("prepare", "--finish", name)


def loader_arguments() -> dict[str, Any]:
    return dict(global_batch_size=2, seq_len=8, collate="pack", seed=5, epochs=2)


def states() -> None:
    """A state in the middle of an epoch, of one dataset and of a mixture, and the ids of the next batch."""
    for name, shards in (("loader", "tar"), ("mixture", [mr.Source("tar", weight=2), mr.Source("blocks")])):
        arguments = loader_arguments()
        if name == "mixture":
            del arguments["epochs"]
        with mr.Loader(shards, **arguments) as loader:
            for _ in range(3):
                next(loader)
            loader.skip(6, 7)
            state = loader.state_dict()
            ids = next(loader)["input_ids"].tolist()
        Path(f"{name}_state.json").write_text(json.dumps({"state": state, "next": ids}) + "\n")


def checkpoint() -> None:
    state = {
        "numbers": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "halves": torch.ones(3, dtype=torch.bfloat16),
    }
    with mr.torch.Checkpointer("checkpoint") as checkpointer:
        checkpointer.save(7, {"model": state, "step": 7}).wait()


def sealed(document: dict[str, Any]) -> str:
    """A document of a checkpoint with its checksum, by docs/format/checkpoint.md."""
    options: dict[str, Any] = dict(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    document.pop("checksum", None)
    checksum = xxhash.xxh3_128_hexdigest(json.dumps(document, **options).encode())
    return json.dumps(document | {"checksum": checksum}, **options)


def checkpoint_line() -> None:
    """A run that went back: 10, 20 and 30, then 20 again from 10, on two ranks. The manifests have a `line`."""
    for attempt, steps, after in (("r0000-a", (10, 20, 30), []), ("r0001-b", (20,), [("r0000-a", 10)])):
        savers = [
            _core.Saver("checkpoint_line", attempt=attempt, rank=rank, world_size=2, threads=1) for rank in range(2)
        ]
        for saver in savers:
            saver.continue_from(after)
        for step in steps:
            value = step + int(attempt[-1] == "b")
            numbers = array.array("f", [value] * 4)
            tensor = ("w", "F32", [4, 2], [0, 0], [2, 2], numbers.buffer_info()[0])
            other = ("w", "F32", [4, 2], [2, 0], [2, 2], numbers.buffer_info()[0])
            saves = [savers[0].save(step, [tensor], "{}"), savers[1].save(step, [other], "null")]
            for save in saves:
                save.wait(60)
        for saver in savers:
            saver.close()


def checkpoint_folders() -> None:
    """Format version 2, which is written for more than 1,000 ranks, with two: the newest step of checkpoint_line."""
    source = Path("checkpoint_line/step-000000000020")
    target = Path("checkpoint_folders/step-000000000020")
    manifest = json.loads((source / "manifest.json").read_text())
    folder = target / manifest["attempt"] / "ranks-00000"
    folder.mkdir(parents=True)
    for rank, part in enumerate(manifest["parts"]):
        name = f"part-{rank:05}-of-00002.json"
        record = sealed(json.loads((source / manifest["attempt"] / name).read_text()) | {"version": 2})
        (folder / name).write_text(record)
        part |= {"bytes": len(record.encode()), "hash": xxhash.xxh3_128_hexdigest(record.encode())}
        shutil.copy(source / manifest["attempt"] / f"rank-{rank:05}-of-00002.safetensors", folder)
    (target / "manifest.json").write_text(sealed(manifest | {"version": 2}))


def checkpoint_shared() -> None:
    """Format version 3: step 2 refers to the base that step 1 wrote, on two ranks."""
    savers = [
        _core.Saver("checkpoint_shared", attempt="r0000-a", rank=rank, world_size=2, threads=1, refer_unchanged=True)
        for rank in range(2)
    ]
    base = array.array("f", [0.5] * 512)
    for step in (1, 2):
        saves = []
        for rank, saver in enumerate(savers):
            saver.continue_from([("r0000-a", 1)] if step > 1 else [])
            adapter = array.array("f", [step + 10 * rank] * 4)
            tensors = [
                ("adapter", "F32", [4, 2], [2 * rank, 0], [2, 2], adapter.buffer_info()[0]),
                ("base", "F32", [4, 256], [2 * rank, 0], [2, 256], base.buffer_info()[0]),
            ]
            saves.append(saver.save(step, tensors, "{}" if rank == 0 else "null"))
        for save in saves:
            save.wait(60)
    for saver in savers:
        saver.close()
    for manifest in Path("checkpoint_shared").glob("*/manifest.json"):  # without the host and user of this machine
        document = json.loads(manifest.read_text())
        del document["writer"]
        manifest.write_text(sealed(document))


def episodes() -> None:
    Path("csv").mkdir()
    for episode in range(2):
        rows = "\n".join(f"{row},{row * 0.5 + episode},pick" for row in range(3))
        Path(f"csv/episode_{episode}.csv").write_text(f"time,joint,task\n{rows}\n")
    millrace("episodes", "convert", "csv", "--to", "packed")
    shutil.move("csv/episodes.mrpack", "episodes.mrpack")


def record() -> None:
    with mr.Run("record", config={"lr": 0.5}) as run:
        for step in (1, 2):
            run.log(step, loss=1.0 / step)
    millrace("runs", "note", "record", "a note")
    for file in Path("record").iterdir():  # nothing of this machine
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            for key, value in {
                "user": "somebody",
                "host": "node",
                "command": ["train.py"],
                "environment": {},
                "git": None,
            }.items():
                if key in line:
                    line[key] = value
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def link() -> None:
    for name in ("bucket", "directory"):
        Path(name).mkdir()
    Path("bucket/there.txt").write_text("from the bucket\n")
    Path("directory/here.txt").write_text("from the directory\n")
    os.environ["MILLRACE_LINKS"] = "links"
    millrace("link", "add", "directory", f"file://{Path('bucket').resolve()}", "--name", "golden")
    millrace("link", "run", "golden", "--once")
    declared = Path("links/golden/link.json")
    declared.write_text(declared.read_text().replace(str(Path.cwd()), FOLDER))


def ledger() -> None:
    """By hand, with every key of docs/format/ledger.md: a run is submitted by Slurm only."""
    name = "20261125T044350Z-1234-9f3a6b1c2d4e5f60"
    month = Path("ledger/2026-11")
    month.mkdir(parents=True)
    run = {
        "format": "millrace-run", "version": 1, "name": "pretrain", "job_id": "1234", "cluster": "golden",
        "user": "somebody", "host": "login", "submitted": 1795581830, "submitted_text": "2026-11-25T04:43:50Z",
        "work_dir": "/w", "script": "/w/a.sbatch", "script_bytes": 20, "script_hash": "0" * 32, "secrets_removed": 0,
        "arguments": ["x"], "options": ["--nodes=2"], "asked": {"nodes": "2"}, "array": "", "output": "/w/%j.out",
        "error": "", "git": {"commit": "c" * 40, "dirty": False},
        "data": [{"url": "s3://b/shards", "kind": "shards", "manifest_hash": "1" * 32}], "millrace": "0.1.0",
        "environment": {"NCCL_DEBUG": "INFO"},
    }  # fmt: skip
    end = {
        "format": "millrace-run-event", "version": 1, "kind": "end", "time_ns": 1795585430000000000,
        "time_text": "2026-11-25T05:43:50Z", "user": "somebody", "facts": {"state": "COMPLETED", "exit": "0:0",
        "started": "2026-11-25T04:44:00", "ended": "2026-11-25T05:43:50", "elapsed_s": "3590", "nodes": "n[1-2]",
        "tasks": "", "source": "sacct"},
    }  # fmt: skip
    (month / f"{name}.script").write_text("#!/bin/bash\ntrue\nexit\n")
    (month / f"{name}.run.json").write_text(json.dumps(run) + "\n")
    (month / f"{name}.event-end-77aa01b2c3d4e5f6.json").write_text(json.dumps(end) + "\n")


def main() -> None:
    out = Path(sys.argv[1]).absolute()
    out.mkdir(parents=True)  # never over what is there
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["MILLRACE_LEDGER"] = str(Path(folder) / "ledger")
        for make in (
            tokenizer,
            prepared,
            states,
            checkpoint,
            checkpoint_line,
            checkpoint_folders,
            checkpoint_shared,
            episodes,
            record,
            link,
        ):
            make()
        shutil.rmtree(os.environ["MILLRACE_LEDGER"])  # of the record, with paths of this machine
        ledger()
        for name in ("tar", "blocks", "megatron", "tokens", "checkpoint", "checkpoint_line", "checkpoint_folders",
                     "checkpoint_shared", "record", "episodes.mrpack", "loader_state.json", "mixture_state.json", "links", "ledger"):  # fmt: skip
            (shutil.copytree if Path(name).is_dir() else shutil.copy)(name, out / name)
        os.chdir(out)


if __name__ == "__main__":
    main()
