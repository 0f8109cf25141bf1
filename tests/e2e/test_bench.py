# SPDX-License-Identifier: Apache-2.0
"""millrace bench storage: on this node, over several nodes of a real Slurm, stopped, killed, and where there is no room."""

from __future__ import annotations

import array
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import Millrace
from slurm_fixture import Slurm

SMALL = ["--size", "4MiB", "--files", 20, "--small-size", "16KiB", "--seconds", "200ms", "--rounds", 2, "--ranks", 2]


def test_one_node_gives_rates_and_leaves_nothing(millrace: Millrace, tmp_path: Path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    b.mkdir()
    done = millrace("bench", "storage", a, b, *SMALL, "--depth", 4, "--json")
    results = done.objects("bench_storage")
    assert {each["mount"] for each in results} == {str(a), str(b)}
    assert len(results) == 2 * 16
    for each in results:
        assert len(each["rounds"]) == 2 and 0 < each["least"] <= each["median"] <= each["most"], each
        assert (each["unit"] == "B/s") == (each["test"] in BYTES), each
    assert {each["own_data"] for each in results if each["test"] == "read"} == {True}
    meanings = done.objects("bench_meaning")
    assert any(each["what"].startswith("best time between checkpoints of 8 GPUs") for each in meanings)
    assert list(a.iterdir()) == [] and list(b.iterdir()) == []


BYTES = {
    *("write", "write, shared file", "read, one stream", "read, one file", "read", "read beside writes"),
    *("read small files", "checkpoint write", "checkpoint read"),
}


@pytest.mark.parametrize(("profile", "count"), [("training", 11), ("checkpoint", 2), ("metadata", 3)])
def test_a_profile_runs_its_tests(millrace: Millrace, tmp_path: Path, profile: str, count: int):
    done = millrace("bench", "storage", tmp_path, *SMALL, "--profile", profile, "--json")
    assert len(done.objects("bench_storage")) == count
    text = millrace("bench", "storage", tmp_path, *SMALL, "--profile", profile).out
    assert "ranks began within" in text and "(--nodes 2 or more reads another node's)" in text


def test_a_sweep_is_a_table_of_depths_and_sizes(millrace: Millrace, tmp_path: Path):
    small = ["--size", "4MiB", "--files", 20, "--seconds", "50ms", "--rounds", 1, "--ranks", 2, "--depth", 4]
    done = millrace("bench", "storage", tmp_path, *small, "--profile", "sweep", "--json")
    places = [(each["sweep"], each["place"], each["test"].split()[0]) for each in done.objects("bench_storage")]
    depths = [("depth", depth, what) for depth in (1, 4) for what in ("read", "write")]
    sizes = [("size", size, what) for size in (4 << 10, 64 << 10, 1 << 20) for what in ("write", "read")]
    assert places == depths + sizes
    meanings = {each["what"]: each["value"] for each in done.objects("bench_meaning")}
    assert meanings["requests at once that random reads need"] in ("1", "4")
    assert meanings["size of files that reading needs"] in ("4 KiB", "64 KiB", "1 MiB")
    text = millrace("bench", "storage", tmp_path, *small, "--profile", "sweep").out
    rows = [line.split()[1] for line in text.splitlines() if line.startswith(str(tmp_path)) and "/s" in line]
    assert rows[:5] == ["1", "4", "4", "64", "1"], text
    assert "random requests of 4 KiB at once" in text and "file size" in text
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_said_before_anything_is_written(millrace: Millrace, tmp_path: Path):
    assert "and --limit is 1.05 MB" in millrace.fails("bench", "storage", tmp_path, "--limit", "1MiB")
    assert "multiple of 4MiB" in millrace.fails("bench", "storage", tmp_path, "--size", "5MiB", status=2)
    assert "list" in millrace.fails("bench", "storage", tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_test_leaves_nothing(millrace: Millrace, tmp_path: Path, how: int):
    running = millrace.start("bench", "storage", tmp_path, "--size", "64MiB", "--seconds", "30s", "--rounds", 50)
    end = time.monotonic() + 30
    while not list(tmp_path.glob(".millrace-bench-*/node-0/stream-*")):
        assert time.monotonic() < end and running.poll() is None
        time.sleep(0.02)
    running.send_signal(how)
    running.communicate(timeout=60)
    assert running.returncode == (-9 if how == signal.SIGKILL else 128 + how)
    while list(tmp_path.iterdir()):
        assert time.monotonic() < end + 30, list(tmp_path.iterdir())
        time.sleep(0.02)


def test_what_a_dead_test_left_is_removed(millrace: Millrace, tmp_path: Path):
    (tmp_path / ".millrace-bench-n1-1-0/node-0").mkdir(parents=True)
    (tmp_path / "mine").touch()
    assert "removed 1 folder" in millrace("bench", "storage", tmp_path, "--clean").err
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


def test_several_nodes_read_what_others_wrote(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    os.chmod(tmp_path, 0o777)
    done = millrace(
        *("bench", "storage", tmp_path, *SMALL, "--profile", "training", "--nodes", 3, "--json"),
        env=slurm.env,
    )
    results = {each["test"]: each for each in done.objects("bench_storage")}
    assert results["read"]["nodes"] == 3 and results["read"]["ranks"] == 6 and not results["read"]["own_data"]
    assert results["read, one stream"]["ranks"] == 1
    assert results["read, one node"]["ranks"] == results["read, one file"]["ranks"] == 2
    limits = [each["value"] for each in done.objects("bench_meaning") if each["what"] == "what limits reading"]
    assert len(limits) == 1
    assert 0 < results["write"]["start_spread_s"] < 5
    assert list(tmp_path.iterdir()) == []
    queue = subprocess.run(["squeue", "-h"], env=os.environ | slurm.env, capture_output=True, text=True).stdout
    assert "millrace-bench" not in queue
    assert "srun ended with" in millrace.fails(
        "bench", "storage", tmp_path, *SMALL, "--nodes", 2, "--srun", "--partition=none", env=slurm.env
    )
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shards")
    binary = Millrace(os.environ.get("MILLRACE_BIN", "millrace"), made)
    tokenizer = made_tokenizer(made)
    text = made / "a.txt"
    text.write_text("It is a truth universally acknowledged.\n\n" * 3000)
    binary("prepare", text, "--tokenizer", tokenizer, "--out", made / "out", "--documents", "paragraph")
    return made


def made_tokenizer(folder: Path) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        ["It is a truth universally acknowledged."], trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet)
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_the_loader_keeps_a_slow_training_and_not_a_fast_one(millrace: Millrace, shards: Path):
    fixed = ["--seq-len", 64, "--batch-size", 2, "--seconds", "500ms", "--threads", 1]
    fastest = millrace("bench", "loader", shards / "out", *fixed, "--json").object("bench_loader")
    assert fastest["tokens_per_s"] > 0 and fastest["batches"] > 0 and fastest["wait_share"] is None
    assert fastest["limit"] in ("read", "decode", "collate")

    def share(rate: float) -> float:
        found = millrace("bench", "loader", shards / "out", *fixed, "--train", rate, "--json").object("bench_loader")
        return found["wait_share"]

    # A busy machine may stop the loader itself for longer than a step takes.
    assert any(share(fastest["tokens_per_s"] / 100) < 0.5 for _ in range(5))
    assert share(fastest["tokens_per_s"] * 1000) > 0.5
    text = millrace("bench", "loader", shards / "out", *fixed, "--train", 1000).out
    assert "training at 1,000 tokens/s would wait " in text
    assert "none" in millrace.fails("bench", "loader", shards / "none", *fixed)


def test_the_tokenizer_of_a_user(millrace: Millrace, shards: Path):
    files = [shards / "tokenizer.json", shards / "a.txt"]
    done = millrace("bench", "tokenizer", *files, "--threads", 2, "--seconds", "200ms", "--json")
    one, two = done.objects("bench_tokenizer")
    assert (one["threads"], two["threads"]) == (1, 2)
    assert 0 < one["tokens"] <= one["bytes"] and one["bytes_per_s"] > 0
    (shards / "b.txt").write_bytes(b"\xff\xfe")
    assert "no UTF-8" in millrace.fails("bench", "tokenizer", files[0], shards / "b.txt")


def test_checkpoint(millrace: Millrace, tmp_path: Path):
    near, far = tmp_path / "near", tmp_path / "far"
    near.mkdir(), far.mkdir()
    ran = millrace("bench", "checkpoint", far, "--tier", near, "--size", "4MB", "--rounds", 2, "--mtbf", "1h", "--json")
    found = ran.object("bench_checkpoint")
    assert 3e6 < found["bytes"] < 5e6 and found["tensors"] == 4 and found["mtbf_s"] == 3600
    assert [tier["folder"] for tier in found["tiers"]] == [str(near), str(far)]
    # A save is durable behind its stop, in the far tier behind the near one.
    assert 0 < found["stop_s"] < found["tiers"][0]["durable_s"] <= found["tiers"][1]["durable_s"]
    assert found["stop_share"] == pytest.approx(found["stop_s"] / found["best_interval_s"])
    # The next save waits for the one before.
    ran = millrace("bench", "checkpoint", far, "--size", "4MB", "--rounds", 1, "--interval", "1ms", "--json")
    found = ran.object("bench_checkpoint")
    assert found["stop_share"] == pytest.approx((found["stop_s"] + found["tiers"][0]["durable_s"] - 0.001) / 0.001)
    assert not any(near.iterdir()) and not any(far.iterdir())
    millrace.fails("bench", "checkpoint", tmp_path / "none")


def test_checkpoint_like_another(millrace: Millrace, tmp_path: Path):
    core = pytest.importorskip("millrace._core", reason="the Python package writes the checkpoints")
    values = array.array("f", [1.5] * 6)
    with_steps = tmp_path / "run"
    saver = core.Saver(str(with_steps), attempt="r0000-a")
    saver.save(1, [("w", "F32", [2, 3], [0, 0], [2, 3], values.buffer_info()[0])], "{}").wait(60)
    saver.close()
    ran = millrace("bench", "checkpoint", tmp_path, "--like", with_steps, "--rounds", 1)
    assert "in 1 tensor" in ran.out and "of its time for checkpoints" in ran.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    assert "no checkpoints there" in millrace.fails("bench", "checkpoint", tmp_path, "--like", tmp_path)
