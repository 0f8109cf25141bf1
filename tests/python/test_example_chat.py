# SPDX-License-Identifier: Apache-2.0
"""examples/finetune_chat.py: it learns the answers, and a run in two parts is the run in one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

pytest.importorskip("torch", reason="PyTorch is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "finetune_chat.py"


def write_tokenizer(dataset, path: Path) -> Path:
    file = json.loads(Path(dataset.tokenizer).read_text())
    first = 1 + max(*file["model"]["vocab"].values(), *(token["id"] for token in file["added_tokens"]))
    for number, content in enumerate(("<|im_start|>", "<|im_end|>")):
        file["added_tokens"].append(
            {"id": first + number, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
        )  # fmt: skip
    path.write_text(json.dumps(file))
    return path


def write_chats(path: Path, numbers: range) -> Path:
    def message(role: str, content: str) -> dict[str, str]:
        return {"role": role, "content": content}

    lines = [[message("user", f"What follows {n % 10}?"), message("assistant", f"{n % 10 + 1}.")] for n in numbers]
    path.write_text("".join(json.dumps({"messages": line}) + "\n" for line in lines))
    return path


def run(chats: Path, valid: Path, tokenizer: Path, out: Path, steps: int, ranks: int = 1) -> list[str]:
    launch = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    sizes = ["--seq-len", "64", "--batch-size", "8", "--steps", str(steps), "--save-every", "10"]
    command = [sys.executable, *launch, EXAMPLE, "--chats", chats, "--valid", valid, "--tokenizer", tokenizer]
    done = subprocess.run([*map(str, command), "--out", str(out), *sizes], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("step")]


def test_it_learns_and_resumes(dataset, tmp_path):
    tokenizer = write_tokenizer(dataset, tmp_path / "tokenizer.json")
    chats, valid = (
        write_chats(tmp_path / "chats.jsonl", range(200)),
        write_chats(tmp_path / "valid.jsonl", range(7, 30)),
    )
    whole = run(chats, valid, tokenizer, tmp_path / "whole", 20)
    first, last = (float(line.split()[-1]) for line in whole)
    assert last < first < 10
    parts = run(chats, valid, tokenizer, tmp_path / "parts", 10)
    parts += run(chats, valid, tokenizer, tmp_path / "parts", 20)
    assert parts == whole
    more = run(chats, valid, tokenizer, tmp_path / "parts", 30, ranks=2)
    assert [line.split()[1] for line in more] == ["30"]
