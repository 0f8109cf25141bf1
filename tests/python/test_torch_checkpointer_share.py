# SPDX-License-Identifier: Apache-2.0
"""restore(share=True): what several ranks hold alike is read by one of them and sent to the others."""

import os
import shutil
import socket
import types

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from checkpoint_helpers import TinyModel, bits, data_files, train  # noqa: E402

import millrace as mr  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),  # many processes: minutes on a busy machine
]


def run_ranks(function, folder, ranks):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(in_group, args=(function, port, folder, ranks), nprocs=ranks)


def in_group(rank, function, port, folder, ranks):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    try:
        function(rank, folder)
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()


def plain_state(seed):
    """What data parallelism holds on every rank. Each rank has some of it to write, and `large` takes many pieces."""
    torch.manual_seed(seed)
    model = TinyModel(seed)
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optim, 2, seed)
    return {"model": model, "optim": optim, "large": torch.randn(70_001), "half": torch.randn(5).to(torch.bfloat16)}


def hybrid_state(seed, rank):
    """Each shard on two ranks of four, and tensors that one rank has for itself."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    torch.manual_seed(seed)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16, bias=False) for _ in range(6)))
    fully_shard(model, mesh=mesh)
    return plain_state(seed) | {
        "hybrid": model,
        "rows": distribute_tensor(torch.randn(8, 4), mesh, [Shard(0), Replicate()]),
        "own": distribute_tensor(torch.randn(8, 8), mesh, [Shard(0), Shard(1)]),
        "rng": mr.torch.PerRank({"state": torch.full((4,), rank + seed)}),
    }


def values_of(state):
    found = {}
    for name, value in state.items():
        if isinstance(value, mr.torch.PerRank):
            value = value.value
        found[name] = value.state_dict() if hasattr(value, "state_dict") else value
    return bits(local_parts(found))


def local_parts(value):
    if isinstance(value, dict):
        return {key: local_parts(item) for key, item in value.items()}
    return value.to_local() if hasattr(value, "to_local") else value


def small_pieces():
    from millrace.torch import share

    share.PIECE_BYTES = 1003
    return share


def nodes_of_one_rank(rank, folder):
    share = small_pieces()
    state, root = hybrid_state(1, rank), folder / "root"
    checkpointer = mr.torch.Checkpointer(root, tiers=[folder / f"node{rank}"])
    checkpointer.save(1, state).wait(60)
    torch.distributed.barrier()
    if rank == 0:
        shutil.copytree(root, folder / "whole")
        for path in data_files(root, 1):
            path.unlink()
    torch.distributed.barrier()
    # No folder has all parts now, but each rank finds nearby what it has to read for all.
    live = hybrid_state(9, rank)
    assert checkpointer.restore(live, step=1, share=True) == 1
    assert values_of(live) == values_of(state)
    with pytest.raises((OSError, mr.CorruptionError, RuntimeError), match=r"safetensors|restore failed"):
        checkpointer.restore(hybrid_state(9, rank), step=1)
    checkpointer.close()

    with mr.torch.Checkpointer(folder / "whole") as whole:
        # A rank that wants less reads for itself what it wants, and the others do as well.
        live, others = hybrid_state(9, rank), hybrid_state(9, rank)["large"]
        only = [name for name in live if rank != 2 or name != "large"]
        assert whole.restore(live, only=only, share=True) == 1
        assert values_of(live) == values_of(state | ({"large": others} if rank == 2 else {}))

        # Bytes that change on the way are found, and are no damage of the step.
        def bend(buffer, **options):
            buffer[rank * 7] ^= 4
            return torch.distributed.isend(buffer, **options)

        if rank == 1:
            share.dist = types.SimpleNamespace(isend=bend, irecv=torch.distributed.irecv)
        with pytest.raises((ConnectionError, RuntimeError), match="changed on their way from rank 1"):
            whole.restore(hybrid_state(9, rank), share=True)


def another_number_of_ranks(rank, folder):
    small_pieces()
    state, live = plain_state(1), plain_state(9)
    with mr.torch.Checkpointer(folder / "whole") as checkpointer:
        assert checkpointer.restore(live, only=list(live), share=True) == 1
    assert values_of(live) == values_of(state)


@pytest.mark.long
def test_each_byte_is_read_by_one_rank(tmp_path):
    run_ranks(nodes_of_one_rank, tmp_path, 4)
    run_ranks(another_number_of_ranks, tmp_path, 3)
