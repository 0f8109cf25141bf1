# SPDX-License-Identifier: Apache-2.0
"""The plug-ins of torch.distributed.checkpoint on 1, 2 and 4 gloo ranks: FSDP2, and FSDP2 over tensor parallelism."""

import datetime
import os
import shutil
import socket

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
dcp = pytest.importorskip("torch.distributed.checkpoint", reason="this PyTorch has no torch.distributed")

from checkpoint_helpers import bits, data_files, flip_byte_of, header_of  # noqa: E402

import millrace as mr  # noqa: E402

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

SIZES = (1, 2, 4)


class Layout:
    """A model and its optimizer on the first `size` ranks, sharded by FSDP2; or on a mesh of 2 x 2 with tensor
    parallelism."""

    def __init__(self, mesh, seed):
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        self.group = None if mesh.ndim == 2 else mesh.get_group()
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 7, bias=False))
        if mesh.ndim == 2:
            parallelize_module(self.model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
            fully_shard(self.model, mesh=mesh["dp"])
        else:
            fully_shard(self.model, mesh=mesh)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        for _ in range(2):  # a fresh optimizer has no state to load into
            self.model(torch.ones(4, 8)).square().sum().backward()
            self.optim.step()
            self.optim.zero_grad()

    def state(self):
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optim = get_state_dict(self.model, self.optim)
        return {"model": model, "optim": optim, "plain": {"seen": 7}}

    def whole(self):
        """Every tensor, gathered."""
        found = {}

        def walk(value, path):
            if isinstance(value, dict):
                for key, item in value.items():
                    walk(item, (*path, key))
            elif isinstance(value, torch.Tensor):
                found[path] = value.full_tensor() if hasattr(value, "full_tensor") else value

        walk(self.state(), ())
        return found


def make_meshes():
    """By name; every rank makes all of them."""
    from torch.distributed.device_mesh import DeviceMesh

    meshes = {f"fsdp{size}": DeviceMesh("cpu", list(range(size))) for size in SIZES}
    return {**meshes, "2d": DeviceMesh("cpu", torch.arange(4).view(2, 2), mesh_dim_names=("dp", "tp"))}


def each_layout(meshes, seed):
    """Those that this rank takes part in."""
    for name, mesh in meshes.items():
        if mesh.get_coordinate() is not None:
            yield name, Layout(mesh, seed)


def save_and_load_in_every_layout(rank, meshes, root):
    wanted = {}
    for name, layout in each_layout(meshes, seed=1):
        writer = mr.torch.dcp.StorageWriter(root / name)
        dcp.save(layout.state(), storage_writer=writer, process_group=layout.group)
        saving = dcp.async_save(
            layout.state(), checkpoint_id=root / name / "step-5", storage_writer=writer, process_group=layout.group
        )
        saving.result()
        wanted[name] = layout.whole()
        if rank == 0:
            torch.save(wanted[name], root / f"{name}.pt")
        writer.close()
    torch.distributed.barrier()
    for seed, source in enumerate(meshes, start=10):
        expected = torch.load(root / f"{source}.pt")
        for _, layout in each_layout(meshes, seed):
            state = layout.state()
            reader = mr.torch.dcp.StorageReader(root / source)
            dcp.load(state, storage_reader=reader, process_group=layout.group)
            assert state["plain"]["seen"] == 7
            found = layout.whole()  # loaded in place
            assert found.keys() == expected.keys()
            for key, value in expected.items():
                assert bits(found[key]) == bits(value), (source, key)


def damage_of_one_rank_is_everyones(rank, meshes, root):
    layout = Layout(meshes["fsdp4"], seed=3)
    dcp.save(layout.state(), storage_writer=mr.torch.dcp.StorageWriter(root / "damaged"))
    torch.distributed.barrier()
    if rank == 0:
        flip_byte_of(data_files(root / "damaged", 0)[3], "model.0.weight")
    torch.distributed.barrier()
    with pytest.raises(dcp.api.CheckpointException, match=r"model\.0\.weight") as raised:
        dcp.load(layout.state(), storage_reader=mr.torch.dcp.StorageReader(root / "damaged"))
    assert "rank-00003-of-00004" in str(raised.value)


def a_failed_rank_fails_all(rank, meshes, root):
    class Fails(dcp.DefaultSavePlanner):
        def resolve_data(self, write_item):
            if rank == 2:
                raise OSError("no memory on the device")
            return super().resolve_data(write_item)

    layout = Layout(meshes["fsdp4"], seed=4)
    writer = mr.torch.dcp.StorageWriter(root / "failed")
    dcp.save(layout.state(), storage_writer=writer)
    with pytest.raises(dcp.api.CheckpointException, match="no memory on the device"):
        dcp.save(layout.state(), storage_writer=writer, planner=Fails())
    state = layout.state()
    dcp.load(state, storage_reader=mr.torch.dcp.StorageReader(root / "failed"))
    dcp.save(layout.state(), checkpoint_id=root / "failed" / "step-8", storage_writer=writer)
    writer.close()  # waits for what the save removes
    torch.distributed.barrier()
    assert sorted(path.name[-1] for path in (root / "failed").glob("step-*")) == ["0", "8"]


def ranks_alone(rank, meshes, root):
    """use_collectives=False: each rank plans and commits for itself."""
    state = {"v": torch.full((3,), float(rank)), "n": rank}
    dcp.save(state, storage_writer=mr.torch.dcp.StorageWriter(root / "alone"), use_collectives=False)
    again = {"v": torch.zeros(3), "n": -1}
    dcp.load(again, storage_reader=mr.torch.dcp.StorageReader(root / "alone"))
    assert again["v"].tolist() == [rank] * 3 and again["n"] == rank


def save_in_tiers(rank, mesh, root):
    """Steps 1 and 2 in a near folder that all ranks see, and in a far one. Returns every tensor of step 2, gathered."""
    layout = Layout(mesh, seed=21)
    writer = mr.torch.dcp.StorageWriter(root / "far", tiers=[root / "near"])
    for step in (1, 2):
        layout = Layout(mesh, seed=20 + step)
        dcp.save(layout.state(), checkpoint_id=root / f"far/step-{step}", storage_writer=writer)
    writer.wait()
    writer.close()
    torch.distributed.barrier()
    return layout.whole()


def load_in_tiers(mesh, root, tiers, wanted, step=2):
    layout = Layout(mesh, seed=31)
    dcp.load(layout.state(), storage_reader=mr.torch.dcp.StorageReader(root / "far", tiers=tiers))
    for key, value in layout.whole().items():
        assert bits(value) == bits(wanted[key]), key
    torch.distributed.barrier()


def tiers_of_two_ranks(rank, mesh, root):
    wanted = save_in_tiers(rank, mesh, root)
    near, far = [data_files(root / name, 2) for name in ("near", "far")]
    assert [path.name for path in near] == [path.name for path in far] and len(near) == 2
    torch.distributed.barrier()
    # Each rank's part in another tier is wrong: no tier alone has the step, together they have it, and mend it.
    good = [path.read_bytes() for path in near]
    torch.distributed.barrier()
    if rank == 0:
        flip_byte_of(near[0], "model.0.weight")
        flip_byte_of(far[1], "model.0.weight")
    torch.distributed.barrier()
    load_in_tiers(mesh, root, [root / "near"], wanted)
    assert near[0].read_bytes() == good[0]
    assert far[1].read_bytes() != good[1], "nobody read it"
    torch.distributed.barrier()
    if rank == 0:
        far[1].write_bytes(good[1])
        # Each node has its own near folder, with what its rank wrote, and its manifest.
        for node in range(2):
            shutil.copytree(root / "near", root / f"node{node}")
            data_files(root / f"node{node}", 2)[1 - node].unlink()
    torch.distributed.barrier()
    load_in_tiers(mesh, root, [root / f"node{rank}"], wanted)
    torch.distributed.barrier()
    # The second node is lost: its disk is new, so that its part is in the far tier only.
    if rank == 0:
        shutil.rmtree(root / "node1")
        far[0].unlink()  # the first node's part is on its disk only
    torch.distributed.barrier()
    load_in_tiers(mesh, root, [root / f"node{rank}"], wanted)  # each rank reads its own part only
    if rank == 0:
        data_files(root / "node0", 2)[0].unlink()  # and now nobody has the first part
    torch.distributed.barrier()
    with pytest.raises(dcp.api.CheckpointException, match="rank-00000-of-00002"):
        load_in_tiers(mesh, root, [root / f"node{rank}"], wanted)
    torch.distributed.barrier()
    if rank == 0:
        far[0].write_bytes(good[0])
    torch.distributed.barrier()
    # The near tier has lost a rank's file and its record; then a step that only the far tier has.
    if rank == 0:
        near[1].unlink()
        next(near[1].parent.glob("part-00001-*")).unlink()
    torch.distributed.barrier()
    load_in_tiers(mesh, root, [root / "near"], wanted)
    if rank == 0:
        shutil.rmtree(root / "near/step-000000000002")
    torch.distributed.barrier()
    load_in_tiers(mesh, root, [root / "near"], wanted)


def two_ranks(rank, port, root):
    from torch.distributed.device_mesh import DeviceMesh

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    try:
        tiers_of_two_ranks(rank, DeviceMesh("cpu", [0, 1]), root)
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()


def four_ranks(rank, port, root):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="4")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    try:
        meshes = make_meshes()
        save_and_load_in_every_layout(rank, meshes, root)
        damage_of_one_rank_is_everyones(rank, meshes, root)
        a_failed_rank_fails_all(rank, meshes, root)
        ranks_alone(rank, meshes, root)
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_tiers_of_two_ranks(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(two_ranks, args=(port, tmp_path), nprocs=2)


# The slowest part is the start of four processes that import torch.
@pytest.mark.filterwarnings("ignore")
def test_every_layout_loads_what_every_other_saved(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(four_ranks, args=(port, tmp_path), nprocs=4)
    files = data_files(tmp_path / "2d", 0)
    assert len(files) == 4
    # A matrix is cut in four: no rank gathered it.
    assert all(header_of(path)[0]["model.0.weight"]["shape"] == [3, 8] for path in files)


# Of FSDP1, which itself needs a GPU.
@pytest.mark.filterwarnings("ignore")
def test_a_sharded_tensor_is_refused_with_the_way_out(tmp_path):
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    try:
        value = torch.distributed._shard.sharded_tensor.zeros(ChunkShardingSpec(0, ["rank:0/cpu"]), 4, 2)
        checkpointer = mr.torch.Checkpointer(tmp_path)
        with pytest.raises(TypeError, match=r"^model\.w: .*FSDP1.*fully_shard \(FSDP2\)"):
            checkpointer.save(1, {"model": {"w": value}})
        checkpointer.close()
    finally:
        torch.distributed.destroy_process_group()
