# SPDX-License-Identifier: Apache-2.0
"""The verbs of ckpt in a folder whose run has gone back: 500, 600, 700; back to 500; then 550, 600 and 650."""

from __future__ import annotations

import array
from pathlib import Path

import pytest
from conftest import Millrace


def save(folder: Path, attempt: str, line: list[tuple[str, int]] | None, *steps: int) -> None:
    core = pytest.importorskip("millrace._core", reason="the Python package writes the checkpoints")
    saver = core.Saver(str(folder), attempt=attempt)
    saver.continue_from(line)
    for step in steps:
        values = array.array("f", [float(step)] * 6)
        tensors = [("model.w", "F32", [2, 3], [0, 0], [2, 3], values.buffer_info()[0])]
        saver.save(step, tensors, "{}", "null", {"loss": 1000.0 - step}).wait(60)
    saver.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    save(tmp_path / "run", "r0000-a", [], 500, 600, 700)
    save(tmp_path / "run", "r0001-b", [("r0000-a", 500)], 550, 600, 650)
    return tmp_path / "run"


def left(millrace: Millrace, root: Path) -> dict[int, bool]:
    return {each["step"]: each["left_behind"] for each in millrace("ckpt", "ls", root, "--json").objects("checkpoint")}


def test_ls_shows_what_was_left_behind(millrace: Millrace, root: Path):
    assert left(millrace, root) == {500: False, 550: False, 600: False, 650: False, 700: True}
    shown = millrace("ckpt", "ls", root).out
    (row,) = (line for line in shown.splitlines() if line.lstrip().startswith("700"))
    assert "left behind" in row and "1 step left behind" in shown
    lines = {each["step"]: each["line"] for each in millrace("ckpt", "ls", root, "--json").objects("checkpoint")}
    assert lines[500] == []
    assert lines[650] == [{"attempt": "r0000-a", "step": 500}, {"attempt": "r0001-b", "step": 600}]


def test_the_newest_step_is_the_newest_lines(millrace: Millrace, root: Path, tmp_path: Path):
    assert millrace("ckpt", "show", root, "--json").object("checkpoint")["step"] == 650
    assert "continues step 600 of attempt r0001-b" in millrace("ckpt", "show", root).out
    assert "left behind" in millrace("ckpt", "show", root, "--step", 700).out
    assert millrace("ckpt", "verify", root, "--json").object("verify")["step"] == 650
    assert millrace("ckpt", "restore", root, tmp_path / "there", "--json").object("ckpt_restore")["step"] == 650
    # What was copied knows its line.
    assert millrace("ckpt", "ls", tmp_path / "there", "--json").object("checkpoint")["line"][0]["step"] == 500
    advised = millrace("ckpt", "advise", root, "--stall", "2s", "--mtbf", "1d", "--json").objects("ckpt_advise")
    assert advised[0]["step"] == 650
    exported = millrace("ckpt", "export", root, tmp_path / "out.safetensors", "--format", "safetensors")
    assert exported.status == 0


def test_prune_counts_them_apart(millrace: Millrace, root: Path):
    def verdicts(*flags: object) -> dict[int, tuple[bool, str]]:
        ran = millrace("ckpt", "prune", root, *flags, "--dry-run", "--json")
        return {each["step"]: (each["removed"], each["reason"]) for each in ran.objects("prune")}

    kept = verdicts("--keep-last", 3)
    assert [step for step, (removed, _) in kept.items() if removed] == [500]
    assert kept[700] == (False, "left behind, and the line has not come so far")
    assert verdicts("--left-behind")[700] == (True, "left behind")
    millrace("ckpt", "prune", root, "--left-behind")
    assert list(left(millrace, root)) == [500, 550, 600, 650]


def test_tiers_are_one_folder(millrace: Millrace, tmp_path: Path):
    """The root has only what the line left; the tier has the line's newest step, which is not given up."""
    far, near = tmp_path / "far", tmp_path / "near"
    save(far, "r0000-a", [], 500, 700)
    save(near, "r0001-b", [("r0000-a", 500)], 550, 600)
    ran = millrace("ckpt", "ls", far, "--tier", near, "--json").objects("checkpoint")
    assert {each["step"]: each["left_behind"] for each in ran} == {500: False, 550: False, 600: False, 700: True}
    shown = millrace("ckpt", "show", far, "--tier", near, "--json").object("checkpoint")
    assert shown["step"] == 600
    target = tmp_path / "target"
    copied = millrace("ckpt", "restore", far, target, "--tier", near, "--json").object("ckpt_restore")
    assert copied["step"] == 600
    pruned = millrace("ckpt", "prune", far, "--tier", near, "--keep-last", 1, "--json").objects("prune")
    reasons = {(Path(each["root"]).name, each["step"]): each["reason"] for each in pruned}
    assert reasons["near", 550] == "newer than the root's steps"


def test_imports_count_by_their_steps(millrace: Millrace, root: Path, tmp_path: Path):
    """An import of an older step does not become the newest one, nor does it leave the others behind."""
    folder = tmp_path / "imports"
    save(tmp_path / "source", "r0000-a", [], 1)
    model = tmp_path / "model.safetensors"
    millrace("ckpt", "export", tmp_path / "source", model, "--format", "safetensors")
    for step in (1000, 500):
        millrace("ckpt", "import", model, folder, "--step", step)
    assert left(millrace, folder) == {500: False, 1000: False}
    assert millrace("ckpt", "show", folder, "--json").object("checkpoint")["step"] == 1000
