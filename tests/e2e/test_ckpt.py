# SPDX-License-Identifier: Apache-2.0
"""ckpt ls, show and verify. Checkpoints are written through the Python package, since no verb writes one."""

from __future__ import annotations

import array
from pathlib import Path

import pytest
from conftest import Millrace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    core = pytest.importorskip("millrace._core", reason="the Python package writes the checkpoints")
    folder = str(tmp_path / "run")
    saver = core.Saver(folder, attempt=core.make_attempt(folder))
    values = array.array("f", [1.5] * 6)
    for step in (10, 20):
        tensors = [("w", "F32", [2, 3], [0, 0], [2, 3], values.buffer_info()[0])]
        saver.save(step, tensors, '{"epoch": 1}').wait(60)
    saver.close()
    return tmp_path / "run"


def test_ls(millrace: Millrace, root: Path):
    steps = millrace("ckpt", "ls", root, "--json").objects("checkpoint")
    assert [(s["step"], s["ok"], s["ranks"], s["tensors"]) for s in steps] == [(10, True, 1, 1), (20, True, 1, 1)]
    assert "step  attempt" in millrace("ckpt", "ls", root).out.splitlines()[0]


def test_show(millrace: Millrace, root: Path):
    ran = millrace("ckpt", "show", root, "--json")
    assert (ran.object("checkpoint")["step"], ran.object("checkpoint")["state"]) == (20, {"epoch": 1})
    assert ran.object("tensor") == {"type": "tensor", "name": "w", "dtype": "F32", "shape": [2, 3], "bytes": 24}
    assert "step 10" in millrace("ckpt", "show", root, "--step", 10).out
    assert "step 15" in millrace.fails("ckpt", "show", root, "--step", 15)


def test_verify(millrace: Millrace, root: Path):
    assert len(millrace("ckpt", "verify", root, "--all", "--json").objects("verify")) == 2
    (file,) = (path for path in root.rglob("*.safetensors") if "step-000000000020" in str(path))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    ran = millrace("ckpt", "verify", root, "--json", status=3)
    assert ran.objects("finding")[0]["code"] == "corruption" and not ran.object("verify")["ok"]
    assert "damaged" in millrace("ckpt", "verify", root, "--all", status=3).out
    assert "no damage" in millrace("ckpt", "verify", root, "--step", 10).out


def test_no_checkpoints(millrace: Millrace, tmp_path: Path):
    assert "no checkpoints" in millrace.fails("ckpt", "ls", tmp_path / "none")
    assert [each["type"] for each in millrace("ckpt", "ls", tmp_path / "none", "--json", status=1).objects()] == [
        "error"
    ]
    for verb in ("show", "verify"):
        assert "no checkpoints" in millrace.fails("ckpt", verb, tmp_path / "none")
