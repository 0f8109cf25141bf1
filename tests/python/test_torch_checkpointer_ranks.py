# SPDX-License-Identifier: Apache-2.0
"""millrace.torch.Checkpointer on two and four ranks: FSDP2, HSDP, tensor parallelism, and other numbers of ranks."""

import os
import socket
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
np = pytest.importorskip("numpy")

from checkpoint_helpers import TinyModel, bits, data_files, flip_byte_of, header_of, restored, saved, train  # noqa: E402

import millrace as mr  # noqa: E402

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine


def two_rank_state(rank, scale=1.0):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    model = torch.nn.parallel.DistributedDataParallel(TinyModel(seed=int(scale)))
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    whole = torch.arange(21.0).view(7, 3) * scale
    return {
        "model": model,
        "optim": optim,
        "rows": distribute_tensor(whole, mesh, [Shard(0)]),
        "columns": distribute_tensor(whole, mesh, [Shard(1)]),
        "replica": distribute_tensor(whole, mesh, [Replicate()]),
        "rng": mr.torch.PerRank({"rank": rank, "state": torch.full((4,), rank)}),
    }


def sharded_model(seed):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = TinyModel(seed)
    model.head.weight = torch.nn.Parameter(model.head.weight.detach().clone())
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def two_ranks(rank, port, root):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    try:
        checkpointer = mr.torch.Checkpointer(root, commit_timeout=30)
        state = two_rank_state(rank)
        train(state["model"], state["optim"], 2)
        checkpointer.save(1, state).wait(60)
        torch.distributed.barrier()

        other = two_rank_state(7, scale=3.0)
        assert checkpointer.restore(other) == 1
        for name in ("rows", "columns", "replica"):
            assert torch.equal(other[name].to_local(), state[name].to_local())
        assert bits(other["optim"].state_dict()) == bits(state["optim"].state_dict())
        assert bits(other["model"].state_dict()) == bits(state["model"].state_dict())
        assert other["rng"].value["rank"] == rank and other["rng"].value["state"].sum() == 4 * rank

        checkpointer.save(2, two_rank_state(rank, scale=2.0)).wait(60)
        torch.distributed.barrier()
        if rank == 0:
            flip_byte_of(data_files(root, 2)[1], "rank1/rng.state")
        torch.distributed.barrier()
        # Only a value of rank 1 is damaged, which rank 0 never reads; both ranks go back together.
        assert checkpointer.restore(other) == 1
        assert torch.equal(other["rows"].to_local(), state["rows"].to_local())

        model, optim = sharded_model(5)
        train(model, optim, 2)
        checkpointer.save(3, {"model": model, "optim": optim}).wait(60)
        again, again_optim = sharded_model(6)
        assert checkpointer.restore({"model": again, "optim": again_optim}) == 3
        train(model, optim, 1)
        train(again, again_optim, 1)
        local = [value.to_local() if hasattr(value, "to_local") else value for value in model.state_dict().values()]
        mine = [value.to_local() if hasattr(value, "to_local") else value for value in again.state_dict().values()]
        assert bits(local) == bits(mine)

        # A rank that cannot even begin tells the other.
        if rank == 1:
            with pytest.raises(TypeError, match="set"):
                checkpointer.save(4, {"rng": mr.torch.PerRank({1})})
        else:
            with pytest.raises(Exception, match=r"rank 1.*TypeError.*set"):
                checkpointer.save(4, {"rng": mr.torch.PerRank({"a": 1})}).wait(60)
        torch.distributed.barrier()
        checkpointer.save(5, {"rng": mr.torch.PerRank({"a": rank})}).wait(60)
        if rank == 0:
            compiled = mr.torch.state.encode({"model": torch.compile(TinyModel())}, 0)
            assert compiled.boxes.keys() == mr.torch.state.encode({"model": TinyModel()}, 0).boxes.keys()
            with pytest.raises(NotImplementedError, match="Partial"):
                from torch.distributed.tensor import DTensor, Partial

                mr.torch.state.encode(
                    {"p": DTensor.from_local(torch.ones(2), other["rows"].device_mesh, [Partial()])}, 0
                )
        checkpointer.close()
    finally:
        torch.distributed.destroy_process_group()


def one_of_two_ranks(rank, port, root):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    torch.distributed.init_process_group("gloo")
    try:
        state = two_rank_state(rank)
        with mr.torch.Checkpointer(root) as checkpointer, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert checkpointer.restore({name: state[name] for name in ("rows", "columns", "rng")}) == 1
            assert any("no rank 1" in str(warning.message) for warning in caught) == (rank == 1)
        whole = torch.arange(21.0).view(7, 3) * 2
        assert torch.equal(state["rows"].to_local(), whole[4 * rank : 4 + 4 * rank])
        assert state["rng"].value["rank"] == (5 if rank == 0 else 1)
    finally:
        torch.distributed.destroy_process_group()


def run_ranks(function, root, ranks):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(function, args=(port, root), nprocs=ranks)


def four_ranks(rank, port, root):
    """HSDP, and FSDP2 over tensor parallelism, on a 2 x 2 mesh."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="4")
    torch.distributed.init_process_group("gloo")
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        from torch.distributed.tensor.placement_types import _StridedShard

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

        def two_d(seed):
            torch.manual_seed(seed)
            model = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 8))
            parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
            return fully_shard(model, mesh=mesh["dp"])

        def hybrid(seed):
            torch.manual_seed(seed)
            model = torch.nn.Sequential(*(torch.nn.Linear(16, 16, bias=False) for _ in range(6)))
            return fully_shard(model, mesh=mesh)

        def full(model):
            return {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}

        model, replicas = two_d(1), hybrid(2)
        assert any(type(p) is _StridedShard for t in model.state_dict().values() for p in t.placements)
        optim = torch.optim.AdamW(model.parameters())
        model(torch.ones(4, 8)).sum().backward()
        optim.step()
        odd = distribute_tensor(torch.arange(35.0).view(7, 5), mesh, [Shard(0), Shard(1)])
        whole = distribute_tensor(torch.arange(6.0), mesh, [Replicate(), Replicate()])
        state = {"model": model, "optim": optim, "hybrid": replicas, "odd": odd, "whole": whole}
        checkpointer = mr.torch.Checkpointer(root)
        checkpointer.save(1, state).wait(60)
        torch.distributed.barrier()

        other, other_replicas = two_d(5), hybrid(6)
        other_optim = torch.optim.AdamW(other.parameters())
        live = {"model": other, "optim": other_optim, "hybrid": other_replicas,
                "odd": torch.zeros_like(odd), "whole": torch.zeros_like(whole)}  # fmt: skip
        assert checkpointer.restore(live) == 1
        assert bits(full(other)) == bits(full(model)) and bits(full(other_replicas)) == bits(full(replicas))
        assert torch.equal(live["odd"].full_tensor(), odd.full_tensor())
        moments = other_optim.state_dict()["state"][0]["exp_avg"]
        assert torch.equal(moments.full_tensor(), optim.state_dict()["state"][0]["exp_avg"].full_tensor())

        # One process sees the same whole tensors.
        if rank == 0:
            torch.save({**{f"model.{k}": v for k, v in full(model).items()}}, root / "expected.pt")
        else:
            full(model)
        # Every placement that torch itself can describe is the box that torch says it is, or refused.
        from millrace.torch.tensors import _place
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        for placements in ([Shard(0), Shard(0)], [Shard(1), Shard(0)], [Shard(0), Replicate()],
                           [_StridedShard(0, split_factor=2), Shard(0)]):  # fmt: skip
            for shape in ((8, 8), (7, 3), (2, 5), (1, 4)):
                expected = compute_local_shape_and_global_offset(shape, mesh, placements)
                found = _place(shape, mesh, placements)
                assert found[0] == tuple(expected[0]) and (0 in found[0] or found[1] == tuple(expected[1]))
        with pytest.raises(NotImplementedError, match="no box"):
            strided = [_StridedShard(0, split_factor=2), Replicate()]
            mr.torch.state.encode({"s": DTensor.from_local(torch.ones(4, 2), mesh, strided, run_check=False)}, rank)
        checkpointer.close()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
@pytest.mark.filterwarnings("ignore")
def test_four_ranks_in_two_dimensions(tmp_path):
    run_ranks(four_ranks, tmp_path, 4)
    sizes = [path.stat().st_size - header_of(path)[1] for path in data_files(tmp_path, 1)]
    names = [header_of(path)[0].keys() for path in data_files(tmp_path, 1)]
    # Replicas of a shard share its tensors out: no rank writes none of the hybrid model, none all of its half.
    assert all(0 < sum(name.startswith("hybrid.") for name in of_rank) < 6 for of_rank in names)
    assert max(sizes) < 2 * min(sizes)
    expected = torch.load(tmp_path / "expected.pt")
    live = {"model": torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 8))}
    assert restored(tmp_path, live, only="model") == 1
    for name, tensor in live["model"].state_dict().items():
        assert torch.equal(tensor, expected[f"model.{name}"])


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
@pytest.mark.filterwarnings("ignore")
def test_two_ranks(tmp_path):
    run_ranks(two_ranks, tmp_path, 2)
    one, two = (header_of(path)[0].keys() - {"__metadata__"} for path in data_files(tmp_path, 1))
    assert one & two == {"rows", "columns"} and one - two and two - one  # what is replicated is written once

    # Two ranks' checkpoint on one rank: shards become whole tensors, the rank's own values are those of rank 0.
    model = TinyModel(seed=9)
    optim = torch.optim.AdamW(model.parameters(), lr=0.3)
    state = {"model": model, "optim": optim, "rows": torch.zeros(7, 3), "columns": torch.zeros(7, 3), "replica": None}
    state["rng"] = mr.torch.PerRank(None)
    with mr.torch.Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.restore(state, step=1) == 1
        for name in ("rows", "columns", "replica"):
            assert torch.equal(state[name], torch.arange(21.0).view(7, 3))
        assert state["rng"].value["rank"] == 0

    # And one rank's checkpoint on two.
    saved(tmp_path / "one", 1, {"rows": torch.arange(21.0).view(7, 3) * 2, "columns": torch.ones(7, 3),
                                "rng": mr.torch.PerRank({"rank": 5, "state": torch.ones(4)})})  # fmt: skip
    run_ranks(one_of_two_ranks, tmp_path / "one", 2)
