# SPDX-License-Identifier: Apache-2.0
"""examples/classify_images.py: it learns, and a run in two parts is the run in one."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sample_tars import write_tar

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

pytest.importorskip("torch", reason="PyTorch is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "classify_images.py"


def write_pictures(folder: Path, seed: int, count: int, with_damage: bool) -> str:
    """Pictures of two classes: bright on top, or bright at the bottom."""
    random = np.random.default_rng(seed)
    members = []
    for number in range(count):
        label = number % 2
        pixels = random.integers(0, 80, (32, 40, 3), np.uint8)
        pixels[:16] += np.uint8(150 * (1 - label))
        pixels[16:] += np.uint8(150 * label)
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "JPEG" if number % 3 else "PNG")
        members += [
            (f"{number:04d}.{'jpg' if number % 3 else 'png'}", out.getvalue()),
            (f"{number:04d}.cls", str(label).encode()),
        ]
    folder.mkdir()
    if with_damage:
        members[0] = (members[0][0], b"no picture")
    write_tar(folder / "0.tar", members)
    return str(folder / "*.tar")


def run(train: str, valid: str, out: Path, steps: int, ranks: int = 1) -> list[str]:
    launch = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    sizes = ["--size", "16", "--batch-size", "8", "--steps", str(steps), "--save-every", "10"]
    command = [sys.executable, *launch, str(EXAMPLE), "--train", train, "--valid", valid, "--classes", "2"]
    done = subprocess.run([*command, "--out", str(out), *sizes], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("step")]


def test_it_learns_and_resumes(tmp_path):
    train = write_pictures(tmp_path / "train", 1, 64, with_damage=True)
    valid = write_pictures(tmp_path / "valid", 2, 21, with_damage=False)
    whole = run(train, valid, tmp_path / "whole", 20)
    assert float(whole[-1].split()[-1]) > 0.8
    first = run(train, valid, tmp_path / "parts", 10)
    rest = run(train, valid, tmp_path / "parts", 20)
    assert first + rest == whole
    more = run(train, valid, tmp_path / "parts", 30, ranks=2)
    assert [line.split()[1] for line in more] == ["30"]
