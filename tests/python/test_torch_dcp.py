# SPDX-License-Identifier: Apache-2.0
"""The plug-ins of torch.distributed.checkpoint in one process, with DCP's own files as the oracle."""

import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
dcp = pytest.importorskip("torch.distributed.checkpoint", reason="this PyTorch has no torch.distributed")

from bad_line import Line  # noqa: E402
from checkpoint_helpers import TinyModel, bits, data_files, flip_byte_of, flip_last_byte, header_of, saved, train  # noqa: E402

import millrace as mr  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # DCP warns that one process saves alone
    pytest.mark.timeout(600),  # many processes: minutes on a busy machine
]


def training_state(seed):
    model = TinyModel(seed)
    optim = torch.optim.AdamW(model.parameters(), lr=0.1 + seed)
    train(model, optim, 2, seed)
    return {
        "model": model.state_dict(),
        "optim": optim.state_dict(),
        "plain": {"step": seed, "names": ["a", ("b", seed)], "none": None},
        "transposed": torch.arange(6.0).view(2, 3).t() + seed,
        "scalar": torch.tensor(seed),
        "empty": torch.empty(0, 4),
        "half": torch.full((5,), 1.5 + seed, dtype=torch.bfloat16),
    }


def loaded(reader, seed=99, **options):
    state = training_state(seed)
    dcp.load(state, storage_reader=reader, **options)
    return state


def test_it_gives_what_the_files_of_dcp_give(tmp_path):
    state = training_state(1)
    dcp.save(state, checkpoint_id=tmp_path / "theirs")
    dcp.save(state, storage_writer=mr.torch.dcp.StorageWriter(tmp_path / "ours"))
    ours = loaded(mr.torch.dcp.StorageReader(tmp_path / "ours"))
    theirs = training_state(99)
    dcp.load(theirs, checkpoint_id=tmp_path / "theirs")
    assert bits(ours) == bits(theirs)
    assert bits(ours["optim"]) == bits(state["optim"])
    # The files are those of every checkpoint: any tool reads the tensors.
    header, _ = header_of(data_files(tmp_path / "ours", 0)[0])
    assert header["model.embed.weight"]["shape"] == [11, 6]
    # And the whole state comes back without a template, by the paths of the planner.
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner

    empty = {}
    dcp.state_dict_loader._load_state_dict(
        empty, mr.torch.dcp.StorageReader(tmp_path / "ours"), planner=_EmptyStateDictLoadPlanner(), no_dist=True
    )
    assert bits(empty["model"]["embed.weight"]) == bits(state["model"]["embed.weight"])
    assert empty["plain"]["names"] == ["a", ("b", 1)]


def test_ids_name_steps_or_folders(tmp_path):
    writer = mr.torch.dcp.StorageWriter(tmp_path, keep_last=2)
    for value in range(3):  # a folder: its saves are numbered
        dcp.save({"v": torch.full((3,), float(value))}, storage_writer=writer)
    dcp.save({"v": torch.full((3,), 20.0)}, checkpoint_id=tmp_path / "step-20", storage_writer=writer)
    writer.close()  # waits for what the save removes
    assert [path.name for path in sorted(tmp_path.glob("step-*"))] == ["step-000000000002", "step-000000000020"]

    def value_of(checkpoint_id):
        state = {"v": torch.zeros(3)}
        dcp.load(state, storage_reader=mr.torch.dcp.StorageReader(checkpoint_id))
        return state["v"][0].item()

    with pytest.raises(dcp.api.CheckpointException, match="step 20 is committed by attempt"):
        other = mr.torch.dcp.StorageWriter(tmp_path / "step-20")
        dcp.save({"v": torch.zeros(3)}, storage_writer=other)
    assert value_of(tmp_path) == 20 and value_of(f"{tmp_path}/step-2") == 2
    assert value_of(f"{tmp_path}/step-000000000020/") == 20
    with pytest.raises(dcp.api.CheckpointException, match="no committed step 7"):
        value_of(tmp_path / "step-7")
    with pytest.raises(dcp.api.CheckpointException, match="no checkpoint there"):
        value_of(tmp_path / "nowhere")
    valid = mr.torch.dcp.StorageWriter.validate_checkpoint_id
    assert valid("s3://b/run/step-1") and valid(tmp_path) and not valid("gs://b/run") and not valid(5)


def test_damage_is_found(tmp_path):
    dcp.save(training_state(1), storage_writer=mr.torch.dcp.StorageWriter(tmp_path))
    flip_byte_of(data_files(tmp_path, 0)[0], "optim.state.0.exp_avg")
    with pytest.raises(dcp.api.CheckpointException, match=r"optim\.state\.0\.exp_avg"):
        loaded(mr.torch.dcp.StorageReader(tmp_path))
    # Of the objects too, before they are unpickled.
    dcp.save(training_state(1), storage_writer=mr.torch.dcp.StorageWriter(tmp_path))
    flip_byte_of(data_files(tmp_path, 1)[0], "plain.names")
    with pytest.raises(dcp.api.CheckpointException, match=r"plain\.names"):
        loaded(mr.torch.dcp.StorageReader(tmp_path))


def test_tiers(tmp_path):
    near, far = tmp_path / "near", tmp_path / "far"
    tiers = [mr.torch.Tier(near, keep_last=1)]
    writer = mr.torch.dcp.StorageWriter(far, tiers=tiers, save_every=2)
    for step in (1, 2, 3, 4):
        dcp.save(training_state(step), checkpoint_id=far / f"step-{step}", storage_writer=writer)
    writer.wait()
    assert [mr._core.list_step_numbers(str(root)) for root in (near, far)] == [[4], [2, 4]]
    reader = mr.torch.dcp.StorageReader(far, tiers=[near])
    assert bits(loaded(reader)) == bits(training_state(4))
    assert bits(loaded(mr.torch.dcp.StorageReader(far / "step-2"))) == bits(training_state(2))
    # Damage in the near tier is read over, and mended.
    whole = data_files(near, 4)[0].read_bytes()
    flip_last_byte(data_files(near, 4)[0])
    assert bits(loaded(reader)) == bits(training_state(4))
    assert data_files(near, 4)[0].read_bytes() == whole
    # A far tier that fails costs no save, and is said.
    data_files(near, 4)[0].parent.parent.rename(tmp_path / "aside")
    for name in far.iterdir():
        shutil.rmtree(name) if name.is_dir() else name.unlink()
    far.rmdir()
    far.touch()
    with pytest.warns(RuntimeWarning, match="step 6 is not in"):
        dcp.save(training_state(6), checkpoint_id=far / "step-6", storage_writer=writer)
        with pytest.raises((OSError, ValueError), match="is not the directory"):
            writer.wait()
    assert bits(loaded(mr.torch.dcp.StorageReader(near))) == bits(training_state(6))
    with pytest.raises((ValueError, dcp.api.CheckpointException), match="another StorageWriter"):
        dcp.save(training_state(1), checkpoint_id=tmp_path / "other/step-9", storage_writer=writer)
    writer.close()


def test_a_tier_that_hangs_is_given_up_for_the_next(s3, bucket, tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    line = Line(s3.endpoint)
    for name, value in (s3.env | {"AWS_ENDPOINT_URL": line.endpoint}).items():
        monkeypatch.setenv(name, value)
    near, far = f"s3://{bucket}/near", tmp_path / "far"
    state = {"x": torch.randint(0, 256, (4 << 20,), dtype=torch.uint8), "y": torch.arange(100.0)}
    writer = mr.torch.dcp.StorageWriter(far, tiers=[mr.torch.Tier(near)])
    dcp.save(state, checkpoint_id=far / "step-1", storage_writer=writer)
    writer.wait()
    writer.close()
    speaks = line.fall_silent()
    patience = threading.Timer(60, speaks.set)
    patience.start()
    try:
        live = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        dcp.load(live, storage_reader=mr.torch.dcp.StorageReader(far, tiers=[near], tier_timeout=1.0))
        assert line.broken > 0
        assert not speaks.is_set(), "it waited for the tier"
        assert all(torch.equal(live[name], state[name]) for name in state)
    finally:
        patience.cancel()
        speaks.set()
        line.server.shutdown()
        line.server.server_close()


def test_what_fails_is_not_committed_and_goes(tmp_path):
    class FailsOnce(dcp.DefaultSavePlanner):
        def resolve_data(self, write_item):
            if write_item.index.fqn == "half":
                raise OSError("the device is gone")
            return super().resolve_data(write_item)

    writer = mr.torch.dcp.StorageWriter(tmp_path)
    dcp.save(training_state(1), storage_writer=writer)
    with pytest.raises(dcp.api.CheckpointException, match="the device is gone"):
        dcp.save(training_state(2), storage_writer=writer, planner=FailsOnce())
    with pytest.raises(dcp.api.CheckpointException, match=r"wide: a tensor of torch\.complex128 cannot be stored"):
        dcp.save({"wide": torch.zeros(2, dtype=torch.complex128)}, storage_writer=writer)

    real = mr._core.Saver.commit
    try:  # the coordinator dies between the parts and the manifest
        mr._core.Saver.commit = lambda *arguments: (_ for _ in ()).throw(OSError("gone"))
        with pytest.raises(dcp.api.CheckpointException, match="gone"):
            dcp.save(training_state(3), storage_writer=writer)
    finally:
        mr._core.Saver.commit = real
    assert loaded(mr.torch.dcp.StorageReader(tmp_path))["plain"]["step"] == 1
    dcp.save(training_state(4), checkpoint_id=tmp_path / "step-9", storage_writer=writer)
    assert loaded(mr.torch.dcp.StorageReader(tmp_path))["plain"]["step"] == 4
    writer.close()  # waits for what the save removes
    assert len(list(tmp_path.glob("step-*"))) == 2, "what was not committed is swept"


def test_an_async_save_stands_still_while_training_goes_on(tmp_path):
    writer = mr.torch.dcp.StorageWriter(tmp_path)
    state = training_state(1)
    addresses = []
    real = writer.stage

    def watched(state_dict):
        staged = real(state_dict)
        addresses.append(staged["half"].data_ptr())
        return staged

    writer.stage = watched
    for step in range(3):
        state["half"].fill_(step)
        state["plain"]["names"][0] = f"step {step}"
        before = copy.deepcopy(state)
        saving = dcp.async_save(state, checkpoint_id=tmp_path / f"step-{step}", storage_writer=writer)
        state["half"].fill_(77)
        state["plain"]["names"][0] = "later"
        saving.result()
        assert bits(loaded(mr.torch.dcp.StorageReader(tmp_path / f"step-{step}"))) == bits(before)
    assert addresses[0] == addresses[1] == addresses[2], "the memory of the copy is kept"
    writer.close()


def test_a_staged_copy_that_is_still_read_is_not_overwritten():
    stager = mr.torch.dcp.Stager()
    from torch.distributed.checkpoint.staging import AsyncStager

    assert isinstance(stager, AsyncStager) and isinstance(mr.torch.dcp.StorageWriter("x"), AsyncStager)
    value = torch.ones(4)
    first = stager.stage({"v": value, "nested": [{"w": value * 2}]})
    value.zero_()
    second = stager.stage({"v": value, "nested": [{"w": value}]})
    assert first["v"].tolist() == [1] * 4 and first["nested"][0]["w"].tolist() == [2] * 4
    stager.release()
    third = stager.stage({"v": value + 3, "nested": [{"w": value}]})
    assert third["v"].data_ptr() == second["v"].data_ptr() and third["v"].tolist() == [3] * 4


def test_async_save_by_a_process(tmp_path):
    child = textwrap.dedent(
        """
        import os, sys, torch, warnings
        import torch.distributed as dist, torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
        import millrace as mr
        if __name__ == "__main__":
            warnings.simplefilter("ignore")
            dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/rendezvous", rank=0, world_size=1)
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
            writer = mr.torch.dcp.StorageWriter(sys.argv[1] + "/run")
            for value in (1.0, 2.0):
                dcp.async_save({"v": torch.full((3,), value)}, storage_writer=writer,
                               async_checkpointer_type=AsyncCheckpointerType.PROCESS).result()
            dist.destroy_process_group()
        """
    )
    script = tmp_path / "child.py"
    script.write_text(child)
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    state = {"v": torch.zeros(3)}
    dcp.load(state, storage_reader=mr.torch.dcp.StorageReader(tmp_path / "run"))
    assert state["v"].tolist() == [2.0] * 3


class Chunked(torch.Tensor):
    """A tensor of which this rank has several chunks, as a ShardedTensor of recommendation models."""

    # Rows 0-1, row 2 without its last column, that column: no box.
    CHUNKS = (((0, 0), (2, 4)), ((2, 0), (1, 3)), ((2, 3), (1, 1)))

    def __create_write_items__(self, fqn, value):
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        properties = TensorProperties(dtype=torch.float32)
        return [
            WriteItem(
                index=MetadataIndex(fqn, torch.Size(offset), at),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(torch.Size(offset), torch.Size(shape)),
                    properties=properties,
                    size=torch.Size((3, 4)),
                ),
            )
            for at, (offset, shape) in enumerate(self.CHUNKS)
        ]

    def __create_chunk_list__(self):
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [ChunkStorageMetadata(torch.Size(offset), torch.Size(shape)) for offset, shape in self.CHUNKS]

    def __get_tensor_shard__(self, index):
        (row, column), (rows, columns) = self.CHUNKS[index.index]
        return self.as_subclass(torch.Tensor)[row : row + rows, column : column + columns]


def test_several_chunks_of_a_tensor_on_one_rank(tmp_path):
    whole = torch.arange(12.0).view(3, 4)
    state = {"table": whole.clone().as_subclass(Chunked), "other": torch.ones(2)}
    dcp.save(state, storage_writer=mr.torch.dcp.StorageWriter(tmp_path))
    plain = {"table": torch.zeros(3, 4), "other": torch.zeros(2)}
    dcp.load(plain, storage_reader=mr.torch.dcp.StorageReader(tmp_path))
    assert torch.equal(plain["table"], whole) and plain["other"].tolist() == [1, 1]
    chunked = {"table": torch.zeros(3, 4).as_subclass(Chunked)}
    dcp.load(chunked, storage_reader=mr.torch.dcp.StorageReader(tmp_path))
    assert torch.equal(chunked["table"].as_subclass(torch.Tensor), whole)


def test_cached_plans(tmp_path):
    from torch.distributed.checkpoint.planner import SavePlanner

    try:
        for step in range(4):  # a writer each, other folders in between: the cached plan is an earlier save's
            root = tmp_path / ("a" if step % 2 == 0 else "b")
            state = {"v": torch.full((4,), float(step)), "n": step}
            dcp.save(
                state,
                storage_writer=mr.torch.dcp.StorageWriter(root),
                planner=dcp.DefaultSavePlanner(enable_plan_caching=True),
            )
        for root, newest in (("a", 2), ("b", 3)):
            state = {"v": torch.zeros(4), "n": 0}
            dcp.load(state, storage_reader=mr.torch.dcp.StorageReader(tmp_path / root))
            assert state["v"].tolist() == [newest] * 4 and state["n"] == newest
    finally:
        for cache in ("all_plans", "global_plan", "metadata", "save_plan", "final_save_plan"):
            getattr(SavePlanner, f"_cached_{cache}").clear()


def test_tied_and_cast_tensors(tmp_path):
    dcp.save(
        {"a": torch.arange(4.0), "b": torch.arange(4.0), "c": torch.arange(4.0)},
        storage_writer=mr.torch.dcp.StorageWriter(tmp_path),
    )
    tied = torch.zeros(4)
    state = {"a": tied, "b": tied, "c": torch.zeros(4, dtype=torch.float64)}
    dcp.load(state, storage_reader=mr.torch.dcp.StorageReader(tmp_path))
    assert tied.tolist() == [0, 1, 2, 3] and state["c"].tolist() == [0, 1, 2, 3]


def test_checkpoints_of_the_checkpointer_are_read_by_name(tmp_path):
    model = TinyModel(3)
    saved(tmp_path, 5, {"model": model, "step": 5})
    other = TinyModel(4)
    state = {"model": other.state_dict()}
    del state["model"]["head.weight"]  # tied: stored once
    dcp.load(state, storage_reader=mr.torch.dcp.StorageReader(tmp_path))
    assert torch.equal(other.embed.weight, model.embed.weight)


def test_a_killed_job_leaves_the_older_step_whole(tmp_path):
    child = textwrap.dedent(
        """
        import sys, torch, warnings
        import torch.distributed.checkpoint as dcp
        import millrace as mr
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        writer = mr.torch.dcp.StorageWriter(sys.argv[1], keep_last=2, threads=1)
        if int(sys.argv[2]) > 0:
            dcp.load({"step": 0}, storage_reader=mr.torch.dcp.StorageReader(sys.argv[1]))
        for step in range(int(sys.argv[2]), 100000):
            state = {f"t{i}": torch.full((100, 100), float(step)) for i in range(20)}
            dcp.save({**state, "step": step}, checkpoint_id=f"{sys.argv[1]}/step-{step}", storage_writer=writer)
        """
    )
    generator = random.Random(7)
    first = 0
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", child, tmp_path, str(first)])
        try:
            deadline = time.monotonic() + 60
            while len(list(tmp_path.glob("step-*/manifest.json"))) < 2 or not any(
                int(path.parent.name[5:]) > first + 1 for path in tmp_path.glob("step-*/manifest.json")
            ):
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.005)
            time.sleep(generator.uniform(0, 0.1))
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        state = {**{f"t{i}": torch.zeros(100, 100) for i in range(20)}, "step": 0}
        dcp.load(state, storage_reader=mr.torch.dcp.StorageReader(tmp_path))
        assert all(bool((state[f"t{i}"] == state["step"]).all()) for i in range(20))
        first = state["step"] - 1  # the restarted job writes a step of the killed one again
