# SPDX-License-Identifier: Apache-2.0
"""The verbs of ckpt on steps that refer to files of earlier ones."""

from __future__ import annotations

import array
from pathlib import Path

import pytest
from conftest import Millrace

BASE_BYTES = 4 * 16384


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Steps 1 to 4 with a base of 64 KiB, which steps 1 and 2 share, and steps 3 and 4."""
    core = pytest.importorskip("millrace._core", reason="the Python package writes the checkpoints")
    folder = str(tmp_path / "run")
    saver = core.Saver(folder, attempt="r0000-a", refer_unchanged=True)
    for step in (1, 2, 3, 4):
        base = array.array("f", [step > 2] * 16384)
        adapter = array.array("f", [step] * 8)
        tensors = [
            ("adapter", "F32", [8], [0], [8], adapter.buffer_info()[0]),
            ("base", "F32", [128, 128], [0, 0], [128, 128], base.buffer_info()[0]),
        ]
        saver.save(step, tensors, "{}").wait(60)
    saver.close()
    return tmp_path / "run"


def steps(millrace: Millrace, root: Path) -> list[int]:
    return [each["step"] for each in millrace("ckpt", "ls", root, "--json").objects("checkpoint")]


def test_ls_and_show_say_what_is_referred_to(millrace: Millrace, root: Path):
    listed = millrace("ckpt", "ls", root, "--json").objects("checkpoint")
    assert [each["referred_bytes"] for each in listed] == [0, BASE_BYTES, 0, BASE_BYTES]
    assert [[base["step"] for base in each["bases"]] for each in listed] == [[], [1], [], [3]]
    assert all(each["ok"] for each in listed)
    assert listed[1]["bytes"] < 8192 and listed[0]["bytes"] > BASE_BYTES
    header = millrace("ckpt", "ls", root).out.splitlines()[0].split()
    assert header[4:6] == ["bytes", "referred"]
    assert "refers to 65.5 kB in the files of step 3\n" in millrace("ckpt", "show", root).out
    assert "refers to" not in millrace("ckpt", "show", root, "--step", 3).out


def test_verify_reads_through_the_references(millrace: Millrace, root: Path):
    verified = millrace("ckpt", "verify", root, "--all", "--json").objects("verify")
    assert [each["ok"] for each in verified] == [True] * 4
    (file,) = (root / "step-000000000001").rglob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[20000] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    ran = millrace("ckpt", "verify", root, "--all", "--json", status=3)
    assert [each["ok"] for each in ran.objects("verify")] == [False, False, True, True]
    assert all("step-000000000001" in each["message"] for each in ran.objects("finding"))
    file.unlink()
    listed = millrace("ckpt", "ls", root, "--json").objects("checkpoint")
    assert [each["ok"] for each in listed] == [False, False, True, True]
    assert "step 1 of attempt r0000-a, which it refers to" in listed[1]["damage"]


def test_prune_keeps_what_is_referred_to(millrace: Millrace, root: Path):
    asked = ("ckpt", "prune", root, "--keep-last", 1)
    would = millrace(*asked, "--dry-run", "--json").objects("prune")
    assert [(each["step"], each["removed"]) for each in would] == [(1, True), (2, True), (3, False), (4, False)]
    assert would[2]["reason"] == "step 4 refers to it"
    assert steps(millrace, root) == [1, 2, 3, 4]
    millrace(*asked)
    assert steps(millrace, root) == [3, 4]
    assert all(each["ok"] for each in millrace("ckpt", "verify", root, "--all", "--json").objects("verify"))
    assert [each.name for each in root.iterdir() if each.is_dir()] != []
    assert not (root / "step-000000000001").exists()


def test_prune_keeps_to_the_quota_as_far_as_it_can(millrace: Millrace, root: Path):
    millrace("ckpt", "prune", root, "--quota", "90K")
    assert steps(millrace, root) == [3, 4]


def test_export_diff_and_restore(millrace: Millrace, root: Path, tmp_path: Path):
    millrace("ckpt", "export", root, tmp_path / "w.safetensors", "--format", "safetensors", "--entry", "")
    content = (tmp_path / "w.safetensors").read_bytes()
    assert array.array("f", [1.0] * 16384).tobytes() in content
    assert array.array("f", [4.0] * 8).tobytes() in content
    differs = millrace("ckpt", "diff", root, 3, 4, "--json", status=3)
    assert [(each["name"], each["kind"]) for each in differs.objects("tensor_diff")] == [("adapter", "changed")]
    assert differs.object("ckpt_diff")["equal"] == 1
    millrace("ckpt", "restore", root, tmp_path / "copy", "--step", 2)
    assert steps(millrace, tmp_path / "copy") == [1, 2]
    verified = millrace("ckpt", "verify", tmp_path / "copy", "--all", "--json").objects("verify")
    assert [each["ok"] for each in verified] == [True, True]
    millrace("ckpt", "diff", root, 2, 2, "--with", tmp_path / "copy")
