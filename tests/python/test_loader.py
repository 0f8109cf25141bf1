# SPDX-License-Identifier: Apache-2.0
"""mr.Loader against webdataset and plain NumPy, and how it behaves under fork, pickle, Ctrl-C and exit."""

import collections
import json
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import millrace as mr


@pytest.fixture(scope="module")
def samples(dataset):
    """Every sample as the package webdataset reads it: key -> (ids, text)."""
    webdataset = pytest.importorskip("webdataset")
    found = {}
    for sample in webdataset.WebDataset(dataset.tars, shardshuffle=False).decode():
        assert set(sample) >= {"__key__", "token_ids.npy", "text.txt"}
        found[sample["__key__"]] = (sample["token_ids.npy"], sample["text.txt"])
    return found


def test_webdataset_reads_the_shards_sample_by_sample(dataset, samples):
    hf = pytest.importorskip("tokenizers").Tokenizer.from_file(str(dataset.tokenizer))
    expected = []
    for path in sorted(dataset.raw.iterdir()):
        pieces = path.read_text().split("\n\n")
        expected += [text for text in (piece.strip("\n") for piece in pieces) if text.strip()]
    assert [text for _, text in samples.values()] == expected
    for ids, text in samples.values():
        assert ids.dtype == np.uint32
        assert ids.tolist() == hf.encode(text).ids
    manifest = json.loads((dataset.shards / "manifest.json").read_text())
    assert manifest["documents"] == len(samples)
    assert manifest["tokens"] == sum(len(ids) for ids, _ in samples.values())


def padded(ids, seq_len, pad_id):
    """One row by plain means."""
    ids = [int(i) for i in ids[:seq_len]]
    space = seq_len - len(ids)
    return ids + [pad_id] * space, ids + [-100] * space, [1] * len(ids) + [0] * space


def test_padding_equals_plain_python(dataset, samples):
    seq_len, pad_id = 64, 3
    rows = []
    with mr.Loader(dataset.tars, batch_size=8, seq_len=seq_len, pad_id=pad_id, epochs=1, drop_last=False) as loader:
        for batch in loader:
            assert all(array.dtype == np.int64 and array.shape[1] == seq_len for array in batch.values())
            rows += zip(*(batch[name].tolist() for name in ("input_ids", "labels", "attention_mask")), strict=True)
    expected = [padded(ids, seq_len, pad_id) for ids, _ in samples.values()]
    assert collections.Counter(map(repr, rows)) == collections.Counter(map(repr, expected))


def test_packing_keeps_every_token_and_document_bounds(dataset, samples):
    seq_len = 256
    documents = []
    with mr.Loader(str(dataset.shards), batch_size=4, seq_len=seq_len, collate="pack", pad_id=-1, epochs=1,
                   drop_last=False, dtype="int32") as loader:  # fmt: skip
        tokens = 0
        for batch in loader:
            assert batch["input_ids"].dtype == np.int32
            for ids, labels, positions in zip(*batch.values(), strict=True):
                real = ids >= 0
                tokens += int(real.sum())
                starts = real & (positions == 0)
                assert (labels[starts] == -100).all() and (labels[~real] == -100).all()
                assert (labels[real & ~starts] == ids[real & ~starts]).all()
                documents += [piece.tolist() for piece in np.split(ids[real], np.flatnonzero(starts)[1:])]
    assert tokens == sum(len(ids) for ids, _ in samples.values())
    whole = collections.Counter(str(ids.tolist()) for ids, _ in samples.values())
    unbroken = collections.Counter(map(str, documents)) & whole
    assert unbroken.total() > 0.5 * len(samples), "most documents lie whole in one row"


def test_the_state_is_small_json(dataset):
    with mr.Loader(dataset.tars, global_batch_size=4, seq_len=32) as loader:
        next(loader)
        state = loader.state_dict()
    assert len(json.dumps(state)) < 600
    assert state["position"] == 4 and state["epoch"] == 0


@pytest.mark.parametrize("collate", ["pad", "pack"])
def test_resume_on_another_number_of_ranks(dataset, collate):
    def rows(world, steps, state=None):
        options = dict(global_batch_size=12, seq_len=64, collate=collate, seed=5)
        loaders = [mr.Loader(dataset.tars, rank=r, world_size=world, **options) for r in range(world)]
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(state)
        taken = [
            sorted(map(tuple, np.concatenate([next(x)["input_ids"] for x in loaders]).tolist())) for _ in range(steps)
        ]
        states = [loader.state_dict() for loader in loaders]
        assert all(s == states[0] for s in states)
        for loader in loaders:
            loader.close()
        return taken, states[0]

    whole, _ = rows(2, 60)
    first, state = rows(2, 23)
    rest, _ = rows(3, 37, json.loads(json.dumps(state)))
    assert first + rest == whole


def test_ranks_of_torchrun_share_the_samples(dataset, monkeypatch):
    rows = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        with mr.Loader(dataset.tars, batch_size=2, seq_len=32, epochs=1, drop_last=False) as loader:
            rows.append(sum(len(batch["input_ids"]) for batch in loader))
        with mr.SampleLoader(dataset.tars, batch_size=2, epochs=1, drop_last=False) as loader:
            rows.append(sum(len(batch["__key__"]) for batch in loader))
    with mr.Loader(dataset.tars, batch_size=2, seq_len=32, epochs=1, drop_last=False, rank=0, world_size=1) as loader:
        whole = sum(len(batch["input_ids"]) for batch in loader)
    assert rows[0] + rows[2] == rows[1] + rows[3] == whole and 0 < rows[0] < whole
    with pytest.raises(ValueError, match="together"):
        mr.Loader(dataset.tars, batch_size=2, seq_len=32, rank=0)


def test_arrays_own_their_memory(dataset):
    loader = mr.Loader(dataset.tars, batch_size=4, seq_len=32, memory_bytes=8 << 20)
    kept = [next(loader)["input_ids"] for _ in range(100)]
    copies = [array.copy() for array in kept]
    assert loader.stats()["batch_copies"] > 0
    loader.close()
    del loader
    assert all(np.array_equal(a, b) for a, b in zip(kept, copies, strict=True))
    kept[0][0, 0] = 7  # writable: it is the user's


def test_pickle_carries_the_configuration(dataset):
    with mr.Loader(dataset.tars, batch_size=4, seq_len=32, seed=9) as loader:
        first = next(loader)["input_ids"].copy()
        with pickle.loads(pickle.dumps(loader)) as again:
            assert np.array_equal(next(again)["input_ids"], first)


def test_threads_stay_near_the_gpu_unless_told_not_to(dataset):
    with mr.Loader(dataset.tars, batch_size=4, seq_len=32) as loader:
        assert loader._reader.config()["numa"] is True
    with mr.Loader(dataset.tars, batch_size=4, seq_len=32, numa=False) as loader:
        again = pickle.loads(pickle.dumps(loader))
    with again:
        assert again._reader.config()["numa"] is False
        assert len(next(again)["input_ids"]) == 4


def test_fork(dataset):
    with mr.Loader(dataset.tars, batch_size=4, seq_len=32) as loader:
        next(loader)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                batch = next(loader)
                code = 0 if batch["input_ids"].shape == (4, 32) else 1
            finally:
                os._exit(code)
        expected = next(loader)["input_ids"]
        assert expected.shape == (4, 32)
        assert os.waitpid(child, 0)[1] == 0


def python(code: str, *arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Where the tests run in a shell's background job, SIGINT is ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def test_ctrl_c_ends_an_iteration(dataset):
    process = python(
        """
        import sys, millrace as mr
        loader = mr.Loader(sys.argv[1:], batch_size=4, seq_len=32)
        next(loader)
        print("ready", flush=True)
        for batch in loader:
            pass
        """,
        *dataset.tars,
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert "KeyboardInterrupt" in err
    assert process.returncode in (130, -signal.SIGINT, 1)


@pytest.mark.parametrize("waiting", ["next(loader)", "for batch in loader: pass", "len(loader)", "loader.state_dict()"])
def test_ctrl_c_ends_the_opening_of_a_dataset(waiting):
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections, and answers none
        process = python(
            f"""
            import sys, millrace as mr
            loader = mr.Loader(sys.argv[1], batch_size=4, seq_len=32, epochs=1)
            {waiting}
            """,
            f"http://127.0.0.1:{server.getsockname()[1]}/shard.tar",
        )
        with server.accept()[0]:  # now it waits for the dataset
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=10)
    assert "KeyboardInterrupt" in err
    assert process.returncode in (130, -signal.SIGINT, 1)


@pytest.mark.parametrize("ending", ["pass", "sys.exit(3)", "raise RuntimeError('x')", "threading.Thread(target=lambda: list(loader), daemon=True).start()"])  # fmt: skip
def test_exit_with_an_open_loader_is_quick_and_clean(dataset, ending):
    code = f"""
        import sys, threading, millrace as mr
        loader = mr.Loader(sys.argv[1:], batch_size=4, seq_len=32)
        next(loader)
        {ending}
        """
    begin = time.monotonic()
    processes = [python(code, *dataset.tars) for _ in range(6)]  # beside each other: what races shows then
    for process in processes:
        _, err = process.communicate(timeout=40)
        assert process.returncode in (0, 1, 3), f"no crash at exit: {err}"
        assert "Cancelled" not in err  # as a daemon thread's traceback
    assert time.monotonic() - begin < 30


def test_errors_are_the_exceptions_that_users_expect(dataset, tmp_path):
    with pytest.raises(ValueError, match="only one of them"):
        mr.Loader(dataset.tars, seq_len=32)
    with pytest.raises(ValueError, match="collate"):
        mr.Loader(dataset.tars, seq_len=32, batch_size=1, collate="stack")
    with pytest.raises(FileNotFoundError, match="missing"):
        next(mr.Loader(str(tmp_path / "missing.tar"), seq_len=32, batch_size=1))
    with pytest.raises(NotImplementedError, match="gs://"):
        next(mr.Loader("gs://bucket/x.tar", seq_len=32, batch_size=1))
    with mr.Loader(dataset.tars, seq_len=32, batch_size=1) as loader:
        pass
    with pytest.raises(mr.Cancelled):
        next(loader)
    assert issubclass(mr.CorruptionError, OSError)


def test_damage_is_named(dataset, tmp_path):
    tar = bytearray(pathlib.Path(dataset.tars[0]).read_bytes())
    tar[len(tar) // 2] ^= 0x20
    (tmp_path / "x.tar").write_bytes(tar)
    (tmp_path / "x.tar.index").write_bytes(pathlib.Path(dataset.tars[0] + ".index").read_bytes())
    with mr.Loader(str(tmp_path / "x.tar"), seq_len=32, batch_size=1, epochs=1) as loader:  # noqa: SIM117
        with pytest.raises(mr.CorruptionError, match=r"x\.tar: sample \d+ at byte"):
            for _ in loader:
                pass


def test_a_foreign_tar_is_read_with_a_warning(tmp_path, caplog):
    webdataset = pytest.importorskip("webdataset")
    path = tmp_path / "foreign.tar"
    with webdataset.TarWriter(str(path)) as sink:  # stamps float times: a PAX header for each member
        for i in range(50):
            sink.write({"__key__": f"sample_{i:04d}", "token_ids.json": list(range(i, 2 * i)), "text.txt": "x" * i})
    with mr.Loader(str(path), seq_len=128, batch_size=50, epochs=1, shuffle=False, pad_id=-1) as loader:
        ids = next(loader)["input_ids"]
    assert [row[row >= 0].tolist() for row in ids] == [list(range(i, 2 * i)) for i in range(50)]
    assert "no index beside it" in caplog.text
