# SPDX-License-Identifier: Apache-2.0
"""millrace.torch.Checkpointer in tiers: a node's disk, a shared folder, a root."""

import logging
import os
import shutil
import socket
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from checkpoint_helpers import TinyModel, bits, data_files, flip_last_byte, train  # noqa: E402

import millrace as mr  # noqa: E402

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine


def trained(seed, steps=2):
    model = TinyModel(seed)
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optim, steps)
    return {"model": model, "optim": optim, "epoch": steps}


def same(a, b):
    return bits(a["model"].state_dict()) == bits(b["model"].state_dict()) and bits(a["optim"].state_dict()) == bits(
        b["optim"].state_dict()
    )


def steps_of(folder):
    return [info["step"] for info in mr._core.list_steps(str(folder))]


FORGOTTEN = """
import sys, torch, millrace as mr
checkpointer = mr.torch.Checkpointer(sys.argv[1], tiers=[sys.argv[2]], tier_timeout=300)
checkpointer.save(1, {"x": torch.ones(1000)})
del checkpointer
print("gone")
"""


def test_one_that_is_not_closed_goes_while_its_threads_log(tmp_path):
    (tmp_path / "file").write_text("no folder")  # so the tier fails, with a warning
    words = [sys.executable, "-c", FORGOTTEN, str(tmp_path / "root"), str(tmp_path / "file/tier")]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=240, check=True)
    assert ran.stdout == "gone\n" and "file/tier" in ran.stderr


def test_tiers_that_cannot_be(tmp_path):
    for tiers in ([f"{tmp_path}/root/"], [f"{tmp_path}/x/../root"], [tmp_path / "a", f"{tmp_path}/a/"]):
        with pytest.raises(ValueError, match="given twice"):
            mr.torch.Checkpointer(tmp_path / "root", tiers=tiers)
    for days in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="keep_days"):
            mr.torch.Checkpointer(tmp_path / "root", keep_days=days)
    with (
        mr.torch.Checkpointer(tmp_path / "root", memory_bytes=1000) as checkpointer,
        pytest.raises(MemoryError, match=r"memory_bytes allows 1\.00 kB for this rank, and a save takes at least"),
    ):
        checkpointer.save(1, {"x": torch.ones(100_000)})


def test_a_save_goes_to_every_tier(tmp_path):
    near, middle, root = (tmp_path / name for name in ("nvme", "fsx", "root"))
    heard = []
    checkpointer = mr.torch.Checkpointer(
        root,
        keep_last=3,
        save_every=2,
        tiers=[mr.torch.Tier(near, keep_last=1), middle],
        on_saved=lambda *what: heard.append(what),
    )
    state = trained(1)
    for step in range(1, 5):
        save = checkpointer.save(step, state)
        save.wait(60, tier=near)
        assert save.status[str(near)] == "durable"
        save.wait(60)
        assert save.status == {
            str(near): "durable",
            str(middle): "durable",
            str(root): "skipped" if step % 2 else "durable",
        }
    with pytest.raises(ValueError, match=f"tier 'elsewhere': there are {near}"):
        save.wait(tier="elsewhere")
    checkpointer.close()
    assert (steps_of(near), steps_of(middle), steps_of(root)) == ([4], [2, 3, 4], [2, 4])
    assert sorted(heard) == sorted(
        (step, str(tier), None)
        for step in range(1, 5)
        for tier in (near, middle, root)
        if tier != root or step % 2 == 0
    )


@pytest.mark.parametrize("loss", ["nothing", "near", "root", "a byte", "a file", "the manifest"])
def test_a_restore_takes_each_part_from_the_nearest_good_copy(tmp_path, loss, caplog):
    near, root = tmp_path / "nvme", tmp_path / "root"
    state = trained(1)
    with mr.torch.Checkpointer(root, tiers=[near]) as checkpointer:
        checkpointer.save(1, trained(2))
        checkpointer.save(2, state)
    if loss in ("near", "root"):
        shutil.rmtree(tmp_path / ("nvme" if loss == "near" else "root"))
    elif loss == "a byte":
        flip_last_byte(data_files(near, 2)[0])
    elif loss == "a file":
        data_files(near, 2)[0].unlink()
    elif loss == "the manifest":
        (near / "step-000000000002/manifest.json").write_text("{}")
    with caplog.at_level(logging.WARNING, "millrace"), mr.torch.Checkpointer(root, tiers=[near]) as checkpointer:
        other = trained(3)
        assert checkpointer.steps() == [1, 2]
        assert checkpointer.restore(other) == 2 and same(other, state)
    assert ("read from" in caplog.text) == (loss in ("a byte", "the manifest")), caplog.text


def test_a_new_run_has_a_newer_attempt_than_every_tier(tmp_path):
    near, root = tmp_path / "nvme", tmp_path / "root"
    for _ in range(3):  # their uploads never began
        with mr.torch.Checkpointer(near) as checkpointer:
            checkpointer.save(1, {"x": torch.zeros(3)})
    with mr.torch.Checkpointer(root, tiers=[near]) as checkpointer:
        checkpointer.save(1, {"x": torch.ones(3)}).wait(60)
        state = {"x": torch.zeros(3)}
        assert checkpointer.restore(state) == 1 and state["x"].tolist() == [1, 1, 1]


def test_a_tier_that_fails_costs_a_warning(tmp_path, caplog):
    near, root = tmp_path / "nvme", tmp_path / "root"
    near.write_text("a file where the folder should be")
    heard = []
    with (
        caplog.at_level(logging.WARNING, "millrace"),
        mr.torch.Checkpointer(root, tiers=[near], on_saved=lambda *what: heard.append(what)) as checkpointer,
    ):
        for step in (1, 2, 3):
            save = checkpointer.save(step, {"x": torch.full((3,), float(step))})
            save.wait(60, tier=root)
            with pytest.raises(ValueError, match="not the directory"):
                save.wait(60, tier=near)
            assert save.status == {str(near): "failed", str(root): "durable"}
    assert f"step 3 is not in {near}" in caplog.text
    assert [error is None for _, tier, error in heard if tier == str(near)] == [False] * 3
    assert steps_of(root) == [1, 2, 3]


def test_a_stop_counts_what_any_tier_has(tmp_path):
    near, root = tmp_path / "nvme", tmp_path / "root"
    root.write_text("a file")
    checkpointer = mr.torch.Checkpointer(near)
    assert mr.torch.StopSignals(30).save(checkpointer, 1, {"x": torch.zeros(3)}) == mr.EXIT_REQUEUE
    checkpointer.close()
    other = tmp_path / "other"
    other.write_text("a file")
    checkpointer = mr.torch.Checkpointer(tmp_path / "good", tiers=[other])
    assert mr.torch.StopSignals(30).save(checkpointer, 1, {"x": torch.zeros(3)}) == mr.EXIT_REQUEUE
    checkpointer.close()


def sharded(seed):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = TinyModel(seed)
    model.head.weight = torch.nn.Parameter(model.head.weight.detach().clone())
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optim, 2)
    return {"model": model, "optim": optim}


def two_nodes(rank, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    try:
        options = dict(tiers=[f"{folder}/node{rank}", f"{folder}/fsx"], keep_last=2, commit_timeout=60)
        state = sharded(1)
        with mr.torch.Checkpointer(f"{folder}/root", **options) as checkpointer:
            for step in (1, 2, 3):
                checkpointer.save(step, state if step == 3 else sharded(9)).wait(60)
        assert steps_of(f"{folder}/node{rank}") == [2, 3]
        torch.distributed.barrier()
        if rank == 0:  # the second node is another one now, and the shared folder has lost a manifest
            shutil.rmtree(f"{folder}/node1")
            os.unlink(f"{folder}/fsx/step-000000000003/manifest.json")
        torch.distributed.barrier()
        with mr.torch.Checkpointer(f"{folder}/root", **options) as checkpointer:
            other = sharded(5)
            assert checkpointer.restore(other) == 3
        for name, value in state["model"].state_dict().items():
            mine = other["model"].state_dict()[name]
            assert torch.equal(
                getattr(value, "to_local", lambda v=value: v)(), getattr(mine, "to_local", lambda m=mine: m)()
            )
        torch.distributed.barrier()
        files = os.listdir(f"{folder}/node0/step-000000000003/" + state_attempt(f"{folder}/root"))
        assert [name for name in sorted(files) if name.startswith("rank-")] == ["rank-00000-of-00002.safetensors"]
    finally:
        torch.distributed.destroy_process_group()


def state_attempt(root):
    return mr._core.Checkpoint(root, 3).attempt


def test_each_node_has_its_own_near_tier(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(two_nodes, (port, str(tmp_path)), nprocs=2)


def test_from_a_disk_to_s3_and_back(s3, bucket, tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    near, root = tmp_path / "nvme", f"s3://{bucket}/run"
    state = {"x": torch.randint(0, 256, (20 << 20,), dtype=torch.uint8), "epoch": 3}
    with mr.torch.Checkpointer(root, tiers=[near], keep_last=1) as checkpointer:
        checkpointer.save(1, {"x": state["x"].flip(0), "epoch": 2})
        assert checkpointer.save(2, state).wait(120) is None
    assert steps_of(root) == [2]
    for lost in (False, True):
        if lost:
            shutil.rmtree(near)
        else:
            flip_last_byte(data_files(near, 2)[0])
        other = {"x": torch.zeros(20 << 20, dtype=torch.uint8), "epoch": 0}
        with mr.torch.Checkpointer(root, tiers=[near]) as checkpointer:
            assert checkpointer.restore(other) == 2
        assert torch.equal(other["x"], state["x"]) and other["epoch"] == 3
