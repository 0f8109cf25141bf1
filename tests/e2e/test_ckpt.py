# SPDX-License-Identifier: Apache-2.0
"""The verbs of ckpt. Checkpoints are written through the Python package, since no verb writes one."""

from __future__ import annotations

import array
import os
import pwd
import socket
from collections.abc import Sequence
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


def test_tiers(millrace: Millrace, tmp_path: Path):
    one = {"w": [1.0, 2.0]}
    near = save_steps(tmp_path / "near", {2: one, 3: one, 4: one, 5: one}, attempt="r0000-a")
    far = save_steps(tmp_path / "far", {1: one, 2: one, 3: one}, attempt="r0000-a")
    (far / "step-000000000002/manifest.json").write_text("{}")
    listed = millrace("ckpt", "ls", far, "--tier", near, "--json").objects("checkpoint")
    places = {each["step"]: [(tier["url"], tier["ok"]) for tier in each["tiers"]] for each in listed}
    assert places[1] == [(str(far), True)] and places[5] == [(str(near), True)]
    assert places[2] == [(str(near), True), (str(far), False)]
    assert f"{near}, {far} (damaged)" in millrace("ckpt", "ls", far, "--tier", near).out
    assert "step 5" in millrace("ckpt", "show", far, "--tier", near).out
    assert f"in {near}, {far}" in millrace("ckpt", "show", far, "--tier", near, "--step", 3).out

    def pruned(*more: str) -> dict[tuple[str, int], bool]:
        ran = millrace("ckpt", "prune", far, "--tier", near, "--keep-last", 1, "--json", *more)
        return {(each["root"], each["step"]): each["removed"] for each in ran.objects("prune")}

    removed = pruned("--dry-run")
    assert removed == pruned() and [step for (root, step), gone in removed.items() if gone and root == str(near)] == [
        2,
        3,
    ]
    assert not removed[str(near), 4], "the root has nothing as new"
    assert [step for (root, step), gone in removed.items() if gone and root == str(far)] == [1]
    assert [step["step"] for step in millrace("ckpt", "ls", near, "--json").objects("checkpoint")] == [4, 5]


def save_steps(
    folder: Path, steps: dict[int, dict[str, list[float]]], metrics: Sequence[float] = (), attempt: str = ""
) -> Path:
    core = pytest.importorskip("millrace._core", reason="the Python package writes the checkpoints")
    saver = core.Saver(str(folder), attempt=attempt or core.make_attempt(str(folder)))
    for at, (step, tensors) in enumerate(steps.items()):
        arrays = {name: array.array("f", values) for name, values in tensors.items()}
        entries = [(name, "F32", [len(a)], [0], [len(a)], a.buffer_info()[0]) for name, a in arrays.items()]
        saver.save(step, entries, "{}", metrics={"loss": metrics[at]} if metrics else {}).wait(60)
    saver.close()
    return folder


def test_diff(millrace: Millrace, tmp_path: Path):
    root = save_steps(tmp_path, {1: {"w": [3, 4], "same": [1], "old": [1]}, 2: {"w": [3, 9], "same": [1], "new": [1]}})
    ran = millrace("ckpt", "diff", root, 1, 2, "--json", status=3)
    found = {each["name"]: each for each in ran.objects("tensor_diff")}
    assert found["w"]["kind"] == "changed" and found["w"]["changed"] == 1
    assert (found["w"]["norm_a"], found["w"]["norm_difference"]) == (5, 5)
    assert found["old"]["kind"] == "only_a" and found["new"]["kind"] == "only_b" and "same" not in found
    assert "1 equal, 1 changed" in millrace("ckpt", "diff", root, 1, 2, status=3).out
    assert "3 equal, 0 changed" in millrace("ckpt", "diff", root, 1, 1).out
    assert "no committed step 7" in millrace.fails("ckpt", "diff", root, 1, 7)


def test_prune(millrace: Millrace, tmp_path: Path):
    root = save_steps(tmp_path, {step: {"w": [step]} for step in (10, 20, 30, 40, 50)})
    before = sorted(root.rglob("*"))
    ran = millrace("ckpt", "prune", root, "--keep-last", 2, "--keep-every", 20, "--dry-run", "--json")
    assert [each["step"] for each in ran.objects("prune") if each["removed"]] == [10, 30]
    assert ran.object("ckpt_prune")["removed"] == 2 and sorted(root.rglob("*")) == before
    assert "removed 0 steps of 5" in millrace("ckpt", "prune", root, "--keep-last", 1, "--older-than", 1).out
    millrace("ckpt", "prune", root, "--keep-last", 2, "--keep-every", 20)
    assert [each["step"] for each in millrace("ckpt", "ls", root, "--json").objects("checkpoint")] == [20, 40, 50]
    # A damaged step is kept and counts for no rule.
    (root / "step-000000000050" / "manifest.json").write_text("{}")
    ran = millrace("ckpt", "prune", root, "--keep-last", 1, "--json")
    assert {each["step"]: each["removed"] for each in ran.objects("prune")} == {20: True, 40: False, 50: False}
    millrace.fails("ckpt", "prune", root, status=2)
    assert "not a number" in millrace.fails("ckpt", "prune", root, "--older-than", "nan", status=2)


def test_prune_by_metric_and_quota(millrace: Millrace, tmp_path: Path):
    root = save_steps(tmp_path, {step: {"w": [1.0] * 64} for step in (1, 2, 3, 4)}, metrics=[3.0, 1.0, 2.0, 4.0])
    assert millrace("ckpt", "ls", root, "--json").objects("checkpoint")[1]["metrics"] == {"loss": 1.0}
    assert "loss 2\n" in millrace("ckpt", "show", root, "--step", 3).out

    def removed(*rules: object) -> list[int]:
        ran = millrace("ckpt", "prune", root, *rules, "--dry-run", "--json")
        return [each["step"] for each in ran.objects("prune") if each["removed"]]

    assert removed("--keep-best", 2, "--monitor", "loss") == [1]
    assert removed("--keep-best", 1, "--monitor", "loss", "--mode", "max") == [1, 2, 3]
    assert removed("--quota", "8KiB") == [1, 2, 3] and removed("--quota", "1GiB") == []
    assert removed("--older-than", 1) == []
    millrace.fails("ckpt", "prune", root, "--keep-best", 1, status=2)
    told = millrace("ckpt", "prune", root, "--keep-last", 1, "--keep-best", 1, "--monitor", "loss").out
    assert "best 1 by loss: 1" in told and "removed 2 steps of 4" in told


def test_advise(millrace: Millrace, tmp_path: Path):
    root = save_steps(tmp_path, {step: {"w": [step]} for step in (10, 20, 30)})
    said = millrace("ckpt", "advise", root, "--stall", "2s", "--mtbf", "10000s", "--json").object("ckpt_advise")
    assert said["step"] == 30 and said["young_s"] == 200 and 190 < said["daly_s"] < 200
    assert said["lost_share"] == pytest.approx(2 / said["daly_s"] + said["daly_s"] / 20000)
    assert 0 < said["interval_s"] < 60 and said["interval_lost_share"] > said["lost_share"]
    told = millrace("ckpt", "advise", root, "--stall", "2s", "--gpus", 64).out
    assert "interval by Daly" in told and "PERSISTENT_2 1000" in told
    choices = millrace("ckpt", "advise", root, "--stall", "2s", "--mtbf", "1h", "--write-within", "1s", "--json")
    by_name = {each["storage"]: each for each in choices.objects("ckpt_storage")}
    assert by_name["gp3"]["iops"] == 3000 and by_name["PERSISTENT_2 250"]["gib"] == 1200 and by_name["S3"]["carries"]
    assert by_name["SCRATCH_2"]["write_s"] < 1
    assert "--mtbf" in millrace.fails("ckpt", "advise", root, "--stall", "2s")
    hopeless = millrace("ckpt", "advise", root, "--stall", "60s", "--mtbf", "1s").out
    assert "all of the time: failures come too often for it to make progress" in hopeless and " %" not in hopeless
    for flag, value in (("--mtbf", "0s"), ("--bandwidth", "0GB/s")):
        assert flag in millrace.fails("ckpt", "advise", root, "--stall", "2s", flag, value, status=2)


def test_restore_copies_and_mends(millrace: Millrace, tmp_path: Path):
    root = save_steps(tmp_path, {step: {"w": [step] * 100} for step in (1, 2)})
    target = tmp_path / "near"
    said = millrace("ckpt", "restore", root, target, "--dry-run", "--json").object("ckpt_restore")
    assert (said["step"], said["copied"], target.exists()) == (2, 0, False)
    assert "copied 1 of 1 part" in millrace("ckpt", "restore", root, target).out
    assert "copied 0 of 1 part" in millrace("ckpt", "restore", root, target).out
    data = next((target / "step-000000000002").rglob("*.safetensors"))
    whole = data.read_bytes()
    data.write_bytes(whole[:-1] + b"?")
    millrace("ckpt", "verify", target, status=3)
    assert millrace("ckpt", "restore", root, target, "--tier", target, "--json").object("ckpt_restore")["copied"] == 1
    assert data.read_bytes() == whole
    millrace("ckpt", "verify", target)
    assert "no committed step 9" in millrace.fails("ckpt", "restore", root, target, "--step", 9)


def test_export_and_import(millrace: Millrace, tmp_path: Path):
    root = save_steps(tmp_path / "run", {1: {"model.a": [1] * 300, "model.b": [2] * 300, "optim.a": [3]}})
    (tmp_path / "like").mkdir()
    (tmp_path / "like" / "config.json").write_text("{}")
    (tmp_path / "like" / "model.safetensors").write_text("no weights")
    out = tmp_path / "out"
    ran = millrace("ckpt", "export", root, out, "--max-file-size", "1kB", "--like", tmp_path / "like", "--json")
    done = ran.object("ckpt_export")
    assert (done["files"], done["tensors"], done["copied"]) == (2, 2, ["config.json"])
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    half = tmp_path / "half.safetensors"
    millrace("ckpt", "export", root, half, "--format", "safetensors", "--dtype", "bf16")
    assert b'"dtype":"BF16"' in half.read_bytes() and half.read_bytes().endswith(b"\x00\x40" * 300)
    millrace.fails("ckpt", "export", root, half, "--dtype", "I8", status=2)
    names = tmp_path / "names.json"
    names.write_text('{"b": "c.*"}')
    assert "'*'" in millrace.fails("ckpt", "import", out, tmp_path / "again", "--names", names)
    names.write_text('{"b": "c", "a": null}')
    millrace("ckpt", "import", out, tmp_path / "again", "--names", names, "--step", 4, "--memory", "500B")
    shown = millrace("ckpt", "show", tmp_path / "again", "--json")
    assert shown.object("tensor")["name"] == "model.c" and shown.object("checkpoint")["step"] == 4
    assert shown.object("checkpoint")["ranks"] > 1, "one part is smaller than the tensor"
    assert "no damage" in millrace("ckpt", "verify", tmp_path / "again").out
    assert "it has model, optim" in millrace.fails("ckpt", "export", root, out, "--entry", "ema")
    assert "a step 4 already" in millrace.fails("ckpt", "import", out, tmp_path / "again", "--step", 4)
    (tmp_path / "ds" / "global_step7").mkdir(parents=True)
    (tmp_path / "ds" / "global_step7" / "mp_rank_00_model_states.pt").write_text("x")
    assert "zero_to_fp32.py" in millrace.fails("ckpt", "import", tmp_path / "ds", tmp_path / "again")
    assert "zero_to_fp32.py" in millrace.fails("ckpt", "import", tmp_path / "ds" / "global_step7", tmp_path / "again")
    # Formats that need torch: what cannot work is said before a Python starts.
    without = {"MILLRACE_PYTHON": str(tmp_path / "no-python")}
    refused = millrace.fails("ckpt", "export", root, "s3://bucket/x", "--format", "dcp", env=without)
    assert "folder of this machine" in refused
    assert "none.pt" in millrace.fails("ckpt", "import", tmp_path / "none.pt", tmp_path / "again", env=without)
    assert "no-python" in millrace.fails("ckpt", "export", root, tmp_path / "dcp", "--format", "dcp", env=without)


def test_the_python_that_converts_gets_what_flags_say_of_storages(millrace: Millrace, tmp_path: Path):
    (tmp_path / "model.pt").write_text("x")
    python = tmp_path / "python"
    python.write_text(f"""#!/bin/sh
env >{tmp_path}/seen
echo '{{"tensors": 1, "bytes": 2, "parts": 3}}'
""")
    python.chmod(0o755)
    flags = ["--endpoint-url", "http://127.0.0.1:1", "--timeout", 7, "--no-sign-request"]
    env = {"MILLRACE_PYTHON": str(python), "MILLRACE_TIMEOUT": "9"}
    millrace("ckpt", "import", tmp_path / "model.pt", "s3://bucket/run", *flags, env=env)
    seen = (tmp_path / "seen").read_text().splitlines()
    assert {"AWS_ENDPOINT_URL_S3=http://127.0.0.1:1", "MILLRACE_TIMEOUT=7", "MILLRACE_S3_ANONYMOUS=1"} <= set(seen)
    assert "MILLRACE_TIMEOUT=9" not in seen


def test_no_checkpoints(millrace: Millrace, tmp_path: Path):
    assert "no checkpoints" in millrace.fails("ckpt", "ls", tmp_path / "none")
    assert [each["type"] for each in millrace("ckpt", "ls", tmp_path / "none", "--json", status=1).objects()] == [
        "error"
    ]
    for verb in ("show", "verify"):
        assert "no checkpoints" in millrace.fails("ckpt", verb, tmp_path / "none")


def test_ls_names_a_file_that_was_cut(millrace: Millrace, root: Path):
    (file,) = (root / "step-000000000020").rglob("*.safetensors")
    (other,) = (root / "step-000000000010").rglob("part-*.json")
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:100])
    other.unlink()
    ran = millrace("ckpt", "ls", root)
    assert (
        ran.out.count("damaged") == 2
        and f"{file}: it has 100 bytes" in ran.out
        and f"{other}: it is missing" in ran.out
    )
    steps = millrace("ckpt", "ls", root, "--json").objects("checkpoint")
    assert [each["ok"] for each in steps] == [False, False] and str(file) in steps[1]["damage"]
    assert steps[1]["bytes"] > 100, "the manifest can be read"
    shown = millrace("ckpt", "show", root)
    assert f"damaged: {file}" in shown.out
    assert not millrace("ckpt", "show", root, "--json").object("checkpoint")["ok"]


def test_who_wrote_a_step(millrace: Millrace, root: Path):
    writer = millrace("ckpt", "ls", root, "--json").objects("checkpoint")[0]["writer"]
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert (writer["user"], writer["host"]) == (user, socket.gethostname())
    assert writer["version"] == millrace("--version").out.split()[-1]
    assert f"{user}@{writer['host']}" in millrace("ckpt", "ls", root).out
    assert f"written by {user}@{writer['host']}, Millrace {writer['version']}" in millrace("ckpt", "show", root).out


def test_steps_of_earlier_builds_do_not_say_who_wrote_them(millrace: Millrace):
    golden = Path(__file__).parents[1] / "golden/0.1.0/checkpoint"
    (step,) = millrace("ckpt", "ls", golden, "--json").objects("checkpoint")
    assert step["ok"] and "writer" not in step
    assert (
        "unknown" in millrace("ckpt", "ls", golden).out and "written by unknown" in millrace("ckpt", "show", golden).out
    )
