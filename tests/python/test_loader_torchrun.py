# SPDX-License-Identifier: Apache-2.0
"""Steps over all ranks under torchrun: the same with 1, 2 and 4 of them, with a resume at each change."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

pytest.importorskip("torch", reason="PyTorch is not installed")

RANK = """
import json, os, sys
import millrace as mr
import millrace.torch
kinds, out, before, steps = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
rank = os.environ["RANK"]
found, states = {}, json.load(open(before)) if before else {}
for kind, (shards, options) in kinds.items():
    if kind == "samples":
        loader = mr.torch.SampleLoader(shards, **options)
    elif isinstance(shards, dict):
        loader = mr.torch.Loader([mr.Source(url, weight=weight) for url, weight in shards.items()], **options)
    else:
        loader = mr.torch.Loader(shards, **options)
    with loader:
        if before:
            loader.load_state_dict(states[kind])
        found[kind] = []
        for _ in range(steps):
            batch = next(loader, None)
            if batch is None:
                break
            rows = batch["n"] if kind == "samples" else batch["input_ids"]
            found[kind].append([repr(row) for row in rows.tolist()])
        states[kind] = loader.state_dict()
json.dump(found, open(f"{out}.{rank}", "w"))
if rank == "0":
    json.dump(states, open(f"{out}.state", "w"))
"""


def steps_of(kinds, folder: Path, name: str, world: int, before: str = "", steps: int = 1 << 30):
    """Of each kind, the sorted rows of every step over all ranks; and the path of the states."""
    script, out = folder / "rank.py", folder / name
    script.write_text(RANK)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", str(script)]
    command = [*launch, json.dumps(kinds), str(out), before, str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    ranks = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(world)]
    by_step = {kind: zip(*(rank[kind] for rank in ranks), strict=True) for kind in kinds}
    whole = {kind: [sorted(itertools.chain(*step)) for step in steps] for kind, steps in by_step.items()}
    return whole, f"{out}.state"


@pytest.fixture(scope="module")
def kinds(dataset, tmp_path_factory) -> dict:
    rows = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(150)))
    tokens = {"global_batch_size": 8, "seq_len": 64, "seed": 4}
    return {
        "packed": [dataset.tars, tokens | {"collate": "pack", "epochs": 1}],
        "mixture": [
            {dataset.tars[0]: 3, dataset.tars[1]: 1},
            tokens | {"collate": "best_fit", "stop": "first_empty"},
        ],
        "samples": [str(rows), {"fields": ["n"], "global_batch_size": 8, "seed": 4, "epochs": 2}],
    }


def test_any_number_of_ranks_makes_the_same_steps(kinds, tmp_path):
    alone, _ = steps_of(kinds, tmp_path, "alone", 1)
    assert all(len(steps) > 12 for steps in alone.values())
    parts = {kind: [] for kind in kinds}
    before = ""
    for world, steps in ((2, 4), (1, 5), (4, 1 << 30)):
        some, before = steps_of(kinds, tmp_path, f"part{world}", world, before, steps)
        for kind, of_kind in some.items():
            parts[kind] += of_kind
    assert parts == alone
