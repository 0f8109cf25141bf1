# SPDX-License-Identifier: Apache-2.0
"""`millrace ckpt last-good`: the newest checkpoint of any program that is complete, and why newer ones are not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Millrace

torch = pytest.importorskip("torch", reason="torch is not installed")
safetensors = pytest.importorskip("safetensors.torch", reason="torch is not installed")


def weights(step: int) -> dict:
    return {"layer.weight": torch.full((4, 8), float(step)), "layer.bias": torch.zeros(8)}


def write_trainer(root: Path, step: int, *, shards: int = 1, deepspeed: bool = False) -> Path:
    """As the Hugging Face Trainer: weights, optimizer, scheduler, random states, trainer_state.json."""
    folder = root / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    if shards == 1:
        safetensors.save_file(weights(step), folder / "model.safetensors", {"format": "pt"})
    else:
        names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
        for name, (key, value) in zip(names, weights(step).items(), strict=True):
            safetensors.save_file({key: value}, folder / name, {"format": "pt"})
        places = dict(zip(weights(step), names, strict=True))
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "config.json").write_text("{}")
    if deepspeed:
        write_deepspeed(folder, step)
    else:
        torch.save({"state": weights(step)}, folder / "optimizer.pt")
    torch.save({"last_epoch": step}, folder / "scheduler.pt")
    torch.save({"cpu": torch.get_rng_state()}, folder / "rng_state.pth")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
    return folder


def write_lightning(root: Path, step: int, name: str = "") -> Path:
    root.mkdir(parents=True, exist_ok=True)
    path = root / (name or f"epoch=1-step={step}.ckpt")
    torch.save({"epoch": 1, "global_step": step, "state_dict": weights(step), "loops": {"global_step": 7}}, path)
    return path


def write_dcp(root: Path, step: int, name: str = "") -> Path:
    import torch.distributed.checkpoint as dcp

    folder = root / (name or f"step-{step}")
    dcp.save({"model": weights(step), "step": step}, checkpoint_id=folder, no_dist=True)
    return folder


def write_megatron(root: Path, step: int, *, dist: bool = False) -> Path:
    """As Megatron-LM: --ckpt-format torch of two tensor and two pipeline ranks, or torch_dist."""
    folder = root / f"iter_{step:07}"
    if dist:
        write_dcp(root, step, folder.name)
        torch.save({"iteration": step}, folder / "common.pt")
        (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "common_backend": "torch"}))
    else:
        for rank in ("00_000", "00_001", "01_000", "01_001"):
            (folder / f"mp_rank_{rank}").mkdir(parents=True)
            torch.save({"iteration": step, "model": weights(step)}, folder / f"mp_rank_{rank}/model_optim_rng.pt")
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))
    return folder


def write_deepspeed(root: Path, step: int, ranks: int = 2) -> Path:
    """As DeepSpeed with ZeRO 2: the model's state by one rank, the optimizer's by each, `latest` at the end."""
    folder = root / f"global_step{step}"
    folder.mkdir(parents=True)
    state = {"module": weights(step), "global_steps": step, "dp_world_size": ranks, "mp_world_size": 1}
    torch.save(state, folder / "mp_rank_00_model_states.pt")
    for rank in range(ranks):
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": weights(rank)}, folder / name)
    (root / "latest").write_text(folder.name)
    return folder


WRITERS: dict[str, Callable[[Path, int], Path]] = {
    "trainer": write_trainer,
    "trainer sharded": lambda root, step: write_trainer(root, step, shards=2),
    "trainer deepspeed": lambda root, step: write_trainer(root, step, deepspeed=True),
    "lightning": write_lightning,
    "dcp": write_dcp,
    "megatron": write_megatron,
    "megatron dist": lambda root, step: write_megatron(root, step, dist=True),
    "deepspeed": write_deepspeed,
}
# What each kind's program writes last, below the checkpoint.
LAST = {
    "trainer": "trainer_state.json",
    "trainer sharded": "trainer_state.json",
    "trainer deepspeed": "latest",
    "dcp": ".metadata",
    "megatron dist": ".metadata",
}


def kind_of(name: str) -> str:
    return name.split()[0]


def files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


@pytest.mark.parametrize("kind", WRITERS)
def test_the_newest_of_each_kind(millrace: Millrace, kind: str):
    out = millrace.cwd / "out"
    old, new = WRITERS[kind](out, 90), WRITERS[kind](out, 100)
    ran = millrace("ckpt", "last-good", "out")
    assert ran.out == f"out/{new.name}\n" and ran.err == ""
    found = millrace("ckpt", "last-good", out, "--json").object("ckpt_last_good")
    assert found["path"] == str(new) and found["step"] == 100 and found["kind"] == kind_of(kind)
    assert found["passed_over"] == [] and old.exists()


@pytest.mark.parametrize("kind", WRITERS)
def test_every_damage_of_every_file_is_seen(millrace: Millrace, kind: str):
    """Each data file of the newest: cut, one byte short, empty, all zeros, gone; and the one before is chosen."""
    out = millrace.cwd / "out"
    old, new = WRITERS[kind](out, 90), WRITERS[kind](out, 100)
    checked = 0
    for file in files_of(new):
        if file.name == "latest" or (file.name == "rng_state.pth" and kind != "trainer"):
            continue
        whole = file.read_bytes()
        damages = {"cut": whole[: len(whole) // 2], "short": whole[:-1], "empty": b"", "zeros": bytes(len(whole))}
        if file.suffix == ".distcp":  # its zeros are tensors', so they are not known
            del damages["zeros"]
        for name, damaged in damages.items():
            file.write_bytes(damaged)
            ran = millrace("ckpt", "last-good", out)
            assert ran.out == f"{old}\n", (kind, file, name, ran)
            assert f"{new}: " in ran.err, (kind, file, name, ran)
            checked += 1
        file.write_bytes(whole)
        if file.name in ("config.json", "rng_state.pth", "scheduler.pt") or kind == "lightning":
            continue  # some of these are optional
        if kind == "trainer deepspeed" and file.name == "model.safetensors":
            continue  # with ZeRO-3 the Trainer may leave it out
        file.unlink()
        ran = millrace("ckpt", "last-good", out)
        assert ran.out == f"{old}\n" and f"{new}: " in ran.err, (kind, file, ran)
        file.write_bytes(whole)
    assert checked >= 4
    assert millrace("ckpt", "last-good", out).out == f"{new}\n"


@pytest.mark.parametrize("kind", LAST)
def test_a_save_that_was_killed_before_its_last_file(millrace: Millrace, kind: str):
    out = millrace.cwd / "out"
    old, new = WRITERS[kind](out, 90), WRITERS[kind](out, 100)
    (new / LAST[kind]).unlink()
    ran = millrace("ckpt", "last-good", out, "--json")
    found = ran.object("ckpt_last_good")
    (passed,) = found["passed_over"]
    assert found["path"] == str(old) and passed["path"] == str(new) and passed["step"] == 100
    assert LAST[kind] in passed["reason"] and "missing" in passed["reason"]
    assert passed["reason"] in ran.err


def test_what_latest_does_not_name_did_not_end(millrace: Millrace):
    megatron, deepspeed = millrace.cwd / "megatron", millrace.cwd / "deepspeed"
    for write, root, name in (
        (write_megatron, megatron, "latest_checkpointed_iteration.txt"),
        (write_deepspeed, deepspeed, "latest"),
    ):
        old = write(root, 90)
        pointer = (root / name).read_text()
        new = write(root, 100)
        (root / name).write_text(pointer)
        ran = millrace("ckpt", "last-good", root)
        assert ran.out == f"{old}\n" and f"{new}: {name}" in ran.err and "did not end" in ran.err
    (megatron / "latest_checkpointed_iteration.txt").unlink()
    assert "Megatron writes last" in millrace("ckpt", "last-good", megatron, status=1).err


def test_a_rank_that_is_missing(millrace: Millrace):
    """How many ranks there were is in DeepSpeed's file of the model, and in the grid of Megatron's folders."""
    out = millrace.cwd / "out"
    old, new = write_deepspeed(out, 90, ranks=3), write_deepspeed(out, 100, ranks=3)
    (new / "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt").unlink()
    ran = millrace("ckpt", "last-good", out)
    assert ran.out == f"{old}\n" and "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt is missing" in ran.err
    other = millrace.cwd / "megatron"
    old, new = write_megatron(other, 90), write_megatron(other, 100)
    shutil.rmtree(new / "mp_rank_01_001")
    ran = millrace("ckpt", "last-good", other)
    assert ran.out == f"{old}\n" and "mp_rank_*" in ran.err


def test_an_optimizer_that_the_trainer_would_not_miss(millrace: Millrace):
    out = millrace.cwd / "out"
    old, new = write_trainer(out, 90), write_trainer(out, 100)
    (new / "optimizer.pt").unlink()
    ran = millrace("ckpt", "last-good", out)
    assert ran.out == f"{old}\n" and "optimizer.pt is missing" in ran.err
    (new / "scheduler.pt").unlink()  # save_only_model
    assert millrace("ckpt", "last-good", out).out == f"{new}\n"


def test_lightning_tells_the_step_inside_its_files(millrace: Millrace):
    out = millrace.cwd / "out"
    best, last = write_lightning(out, 90, "best.ckpt"), write_lightning(out, 100, "last.ckpt")
    os.utime(best, (2_000_000_000, 2_000_000_000))  # younger, and yet older
    assert millrace("ckpt", "last-good", out).out == f"{last}\n"
    last.write_bytes(last.read_bytes()[:200])
    ran = millrace("ckpt", "last-good", out)
    assert ran.out == f"{best}\n"
    os.utime(best, (1_000_000_000, 1_000_000_000))
    assert f"{last}: " in millrace("ckpt", "last-good", out).err


def test_a_folder_of_lightning_under_fsdp(millrace: Millrace):
    out = millrace.cwd / "out"
    for step in (90, 100):
        folder = write_dcp(out, step, f"epoch=0-step={step}.ckpt")
        torch.save({"global_step": step}, folder / "meta.pt")
    assert millrace("ckpt", "last-good", out, "--json").object("ckpt_last_good")["kind"] == "lightning"
    (folder / "meta.pt").unlink()
    assert millrace("ckpt", "last-good", out).out == f"{out}/epoch=0-step=90.ckpt\n"


def test_our_own_steps(millrace: Millrace, tmp_path: Path):
    from test_ckpt import save_steps

    root = save_steps(tmp_path / "run", {step: {"w": [1.0, 2.0]} for step in (1, 2, 3)})
    assert millrace("ckpt", "last-good", root).out == f"{root}/step-000000000003\n"
    (file,) = (root / "step-000000000003").rglob("*.safetensors")
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:100])
    (root / "step-000000000002/manifest.json").unlink()
    found = millrace("ckpt", "last-good", root, "--json").object("ckpt_last_good")
    assert (found["step"], found["kind"]) == (1, "millrace")
    assert "100 bytes" in found["passed_over"][0]["reason"]
    assert "manifest.json is missing" in found["passed_over"][1]["reason"]


def test_none(millrace: Millrace):
    (millrace.cwd / "empty").mkdir()
    assert "no checkpoint there" in millrace.fails("ckpt", "last-good", "empty")
    assert "no checkpoint there" in millrace.fails("ckpt", "last-good", "nowhere")
    new = write_trainer(millrace.cwd / "out", 5)
    (new / "model.safetensors").write_bytes(b"")
    (millrace.cwd / "out/checkpoint-6").mkdir()
    ran = millrace("ckpt", "last-good", "out", status=1)
    assert ran.out == "" and "no usable checkpoint among 2" in ran.err and "it holds no file" in ran.err
    (error,) = millrace("ckpt", "last-good", "out", "--json", status=1).objects()
    assert error["type"] == "error" and error["code"] == "not_found"


def test_in_a_bucket(cloud: Millrace, bucket: str):
    out = cloud.cwd / "out"
    for kind, write in WRITERS.items():
        root = out / kind.replace(" ", "-")
        write(root, 90)
        new = write(root, 100)
        file = next(file for file in files_of(new) if file.suffix in (".pt", ".ckpt", ".safetensors", ".distcp"))
        file.write_bytes(file.read_bytes()[:-10])
    cloud("sync", "out", f"s3://{bucket}/last")
    for kind in WRITERS:
        root = f"s3://{bucket}/last/{kind.replace(' ', '-')}"
        ran = cloud("ckpt", "last-good", root, "--json")
        found = ran.object("ckpt_last_good")
        assert found["step"] == 90 and found["path"].startswith(root + "/")
        (passed,) = found["passed_over"]
        assert passed["step"] == 100 and f"{root}/" in ran.err
