# SPDX-License-Identifier: Apache-2.0
"""Packed batches, token by token, as order_reference.py has them: at world sizes 1 to 64, with resumes between them."""

import io
import os
import random
import tarfile

import numpy as np
import pytest
from order_reference import Options, epoch_order, rank_positions

import millrace as mr

SEED = int(os.environ.get("MILLRACE_TEST_SEED", "0")) or random.SystemRandom().randrange(2**32)


def token(shard, number, at):
    return (shard * 1000 + number) * 1000 + at


def write_tar(path, shard, lengths):
    with tarfile.open(path, "w") as tar:
        for number, length in enumerate(lengths):
            file = io.BytesIO()
            np.save(file, np.array([token(shard, number, t) for t in range(length)], np.uint32))
            info = tarfile.TarInfo(f"{number:06d}.token_ids.npy")
            info.size = file.tell()
            file.seek(0)
            tar.addfile(info, file)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packing")
    rng = random.Random(SEED)
    lengths = [[rng.randrange(rng.choice([1, 20, 60, 300]) + 1) for _ in range(count)] for count in (150, 1, 90, 260)]
    for shard, of_shard in enumerate(lengths):
        write_tar(folder / f"{shard}.tar", shard, of_shard)
    return [str(folder / f"{shard}.tar") for shard in range(len(lengths))], lengths


def expected(rows, seq_len):
    """The arrays of a batch by plain means."""
    ids, labels, positions, documents, bounds = [], [], [], [], [0]
    for row in rows:
        tokens = [(token(s, n, t), t - begin, k) for k, (s, n, begin, end) in enumerate(row) for t in range(begin, end)]
        space = [None] * (seq_len - len(tokens))
        ids.append([t[0] for t in tokens] + [9 for _ in space])
        labels.append([t[0] if t[1] > 0 else -100 for t in tokens] + [-100 for _ in space])
        positions.append([t[1] for t in tokens] + [0 for _ in space])
        documents.append([t[2] for t in tokens] + [-1 for _ in space])
        for length in [*(end - begin for _, _, begin, end in row), len(space)]:
            bounds += [bounds[-1] + length] if length else []
    return {
        "input_ids": ids, "labels": labels, "position_ids": positions, "document_ids": documents, "cu_seqlens": bounds,
        "max_seqlen": max(np.diff(bounds), default=0),
    }  # fmt: skip


@pytest.mark.parametrize("collate", ["pack", "best_fit"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_packed_batches_are_the_references(shards, collate, shuffle):
    tars, lengths = shards
    rng = random.Random(SEED)
    seq_len, global_batch = rng.choice([16, 48, 100]), rng.choice([12, 30])
    print(f"MILLRACE_TEST_SEED={SEED}: seq_len {seq_len}, global batch {global_batch}")
    arguments = dict(
        seq_len=seq_len, global_batch_size=global_batch, collate=collate, shuffle=shuffle, seed=SEED, pad_id=9,
        drop_last=False, uneven_ranks=True, carry_documents=True, num_threads=1, memory_bytes=16 << 20,
    )  # fmt: skip
    state, order, at, epoch = None, None, 0, 0
    for world in [1, 2, 3, 7, 64, 5]:
        loaders = [mr.Loader(tars, rank=rank, world_size=world, **arguments) for rank in range(world)]
        for loader in loaders if state else []:
            loader.load_state_dict(state)
        options = loaders[0].state_dict()["options"]
        options["best_fit"] = options.pop("packing", "") == "best_fit"
        assert options["best_fit"] == (collate == "best_fit")
        for _ in range(rng.randrange(1, 4)):
            if order is None or at == len(order):
                epoch, at = epoch + (order is not None), 0
                order = epoch_order([len(of_shard) for of_shard in lengths], Options(**options), epoch, lengths)
            count = min(global_batch, len(order) - at)
            for rank, loader in enumerate(loaders):
                batch = next(loader)
                rows = [order[p][1] for p in rank_positions(order, at, count, rank, world)]
                for name, values in expected(rows, seq_len).items():
                    assert np.array_equal(batch[name], np.reshape(values, batch[name].shape)), (world, at, name)
            at += count
        state = loaders[0].state_dict()
        for loader in loaders:
            loader.close()


def test_documents_only_where_rows_are_packed(shards):
    with pytest.raises(ValueError, match="packed rows"):
        mr.Loader(shards[0], seq_len=8, batch_size=1, carry_documents=True)
    with mr.Loader(shards[0], seq_len=8, batch_size=1, collate="pack") as loader:
        assert set(next(loader)) == {"input_ids", "labels", "position_ids"}


def test_types_of_the_document_bounds(shards):
    with mr.Loader(
        shards[0], seq_len=64, batch_size=4, collate="best_fit", dtype="int32", carry_documents=True
    ) as loader:
        batch = next(loader)
    assert batch["document_ids"].dtype == batch["cu_seqlens"].dtype == batch["max_seqlen"].dtype == np.int32
    assert batch["max_seqlen"].shape == () and batch["cu_seqlens"][-1] == batch["input_ids"].size
