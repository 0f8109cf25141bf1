# SPDX-License-Identifier: Apache-2.0
"""prepare, shards, loader and checkpoints on s3:// against a real S3 server, and copies while that server fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import Millrace

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

FILES, FILE_BYTES = 12, 24 << 20


@pytest.fixture
def cloud(millrace: Millrace, s3, monkeypatch: pytest.MonkeyPatch) -> Millrace:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    millrace.env = {k: v for k, v in millrace.env.items() if not k.startswith("AWS_")} | s3.env
    return millrace


@pytest.mark.parametrize("form", ["webdataset", "megatron", "tokens"])
def test_prepared_in_a_bucket_as_in_a_folder(
    cloud: Millrace, bucket: str, tokenizer: Path, tmp_path: Path, form: str
) -> None:
    text = "\n".join(f"line {i} of some text that is long enough" for i in range(40_000))
    (tmp_path / "in.txt").write_text(text)
    for out in ("out", f"s3://{bucket}/out"):
        cloud("prepare", "in.txt", "--tokenizer", str(tokenizer), "--out", out, "--format", form, "--task", "0/1")
        cloud("prepare", "--finish", out)
    assert cloud("verify", "out", f"s3://{bucket}/out", "--json").object("verify_summary")["different"] == 0
    again = cloud(
        "prepare", "in.txt", "--tokenizer", str(tokenizer), "--out", f"s3://{bucket}/out", "--format", form, "--json"
    )
    assert again.object("prepare")["shards_reused"] == again.object("prepare")["shards"] != 0


def test_loads_and_saves_in_a_bucket(cloud: Millrace, bucket: str, tokenizer: Path, tmp_path: Path) -> None:
    mr = pytest.importorskip("millrace")
    (tmp_path / "in.txt").write_text("\n".join(f"line {i}" for i in range(3_000)))
    for out in (str(tmp_path / "out"), f"s3://{bucket}/out"):
        cloud("prepare", "in.txt", "--tokenizer", str(tokenizer), "--out", out)
    options = dict(batch_size=16, seq_len=32, collate="pack", shuffle=True, seed=3, epochs=1)
    with (
        mr.Loader(str(tmp_path / "out/00000.tar"), **options) as here,
        mr.Loader(f"s3://{bucket}/out/00000.tar", **options) as there,
    ):
        for ours, theirs in zip(here, there, strict=True):
            assert np.array_equal(ours["input_ids"], theirs["input_ids"])


def test_checkpoints_in_a_bucket(cloud: Millrace, bucket: str) -> None:
    torch = pytest.importorskip("torch")
    mr_torch = pytest.importorskip("millrace.torch")
    url = f"s3://{bucket}/run"
    state = {"weights": torch.arange(5_000_000, dtype=torch.float32), "small": torch.ones(3)}  # 20 MB: parts
    with mr_torch.Checkpointer(url, keep_last=1) as checkpointer:
        for step in (1, 2):
            state["small"] += 1
            checkpointer.save(step, {"model": state}).wait()
        blank = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        assert checkpointer.restore({"model": blank}) == 2
    assert all(torch.equal(blank[name], state[name]) for name in state)
    assert [step["step"] for step in cloud("ckpt", "ls", url, "--json").objects("checkpoint")] == [2]
    cloud("ckpt", "verify", url)


# Reads slowly, by a limit that a process knows from its start, and is interrupted.
INTERRUPTED = """
import os, signal, sys, threading, time
import millrace as mr
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
with mr.open(sys.argv[1], buffering=0) as file:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    try:
        file.read_ranges([0, 5], [file.size, 10])
    except KeyboardInterrupt:
        print(time.monotonic() - begin)
"""


def test_ranges_of_an_object_in_a_bucket(cloud: Millrace, bucket: str, s3, tmp_path: Path) -> None:
    mr = pytest.importorskip("millrace")
    content = os.urandom(20 << 20)
    (tmp_path / "object").write_bytes(content)
    cloud("cp", "object", f"s3://{bucket}/object")
    offsets = [n * 99_991 for n in range(100)] + [0, len(content), 5]
    sizes = [70_000] * 100 + [len(content), 0, 1]
    wanted = [content[at : at + size] for at, size in zip(offsets, sizes, strict=True)]
    with mr.open(f"s3://{bucket}/object", buffering=0) as file:
        assert file.read_ranges(offsets, sizes) == wanted
        s3.client.put_object(Bucket=bucket, Key="object", Body=b"another")
        with pytest.raises(mr.CorruptionError, match="changed while reading"):
            file.read_ranges([0, 10], [10, 10])


def test_ctrl_c_ends_ranges_that_take_long(cloud: Millrace, bucket: str, tmp_path: Path) -> None:
    pytest.importorskip("millrace")
    (tmp_path / "object").write_bytes(os.urandom(20 << 20))
    cloud("cp", "object", f"s3://{bucket}/object")
    env = os.environ | {"MILLRACE_S3_BYTES_PER_SECOND": "1MB"}
    command = [sys.executable, "-c", INTERRUPTED, f"s3://{bucket}/object"]
    took = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout
    assert 0.4 < float(took) < 5


class Faults:
    """A tree being copied up and down while a server of its own fails."""

    def __init__(self, millrace: Millrace, server, tmp_path: Path) -> None:
        self.server, self.source = server, tmp_path / "src"
        self.source.mkdir()
        for i in range(FILES):
            (self.source / str(i)).write_bytes(os.urandom(FILE_BYTES))
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")} | server.env
        self.program, self.cwd = millrace.binary, tmp_path
        server.client.create_bucket(Bucket="faults")

    def run(self, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [self.program, *words], env=self.env, cwd=self.cwd, capture_output=True, text=True, timeout=240
        )

    def copies(self, source: str, target: str, during=None, *, retried: bool = True) -> None:
        ends = threading.Thread(target=during) if during else None
        if ends:
            ends.start()
        done = self.run("sync", source, target, "--json")
        if ends:
            ends.join()
        assert done.returncode == 0, done.stderr
        summary = [json.loads(line) for line in done.stdout.splitlines() if '"transfer_summary"' in line]
        assert summary[0]["retries"] > 0 or not retried, "nothing failed, so nothing was tried"

    def gateway(self) -> int:
        return int((self.server.folder / "run/gateway.pid").read_text())

    def check(self, target: Path) -> None:
        assert {p.name: p.read_bytes() for p in target.iterdir() if p.is_file()} == {
            p.name: p.read_bytes() for p in self.source.iterdir() if p.is_file()
        }


@pytest.fixture
def faults(millrace: Millrace, tmp_path: Path, request: pytest.FixtureRequest):
    from s3_fixture import S3

    server = S3.start(tmp_path / "server", *getattr(request, "param", ()))
    yield Faults(millrace, server, tmp_path)
    server.destroy()


def test_the_gateway_is_killed_and_comes_back(faults: Faults) -> None:
    def kill() -> None:
        time.sleep(0.2)
        os.kill(faults.gateway(), signal.SIGKILL)
        subprocess.run(
            [Path(__file__).parents[1] / "services/s3_server", "start", faults.server.folder],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=120,
        )

    faults.copies("src", "s3://faults/p", kill)
    faults.copies("s3://faults/p", "back", kill)
    faults.check(faults.cwd / "back")


def test_the_gateway_stands_still_for_a_while(faults: Faults) -> None:
    def stop() -> None:
        time.sleep(0.2)
        os.kill(faults.gateway(), signal.SIGSTOP)
        time.sleep(10)
        os.kill(faults.gateway(), signal.SIGCONT)

    faults.copies("src", "s3://faults/p", stop, retried=False)
    faults.copies("s3://faults/p", "back", stop, retried=False)
    faults.check(faults.cwd / "back")


@pytest.mark.parametrize("faults", [("--max-requests", "3")], indirect=True)
def test_the_server_has_too_much_to_do(faults: Faults) -> None:
    faults.copies("src", "s3://faults/p")
    faults.copies("s3://faults/p", "back")
    faults.check(faults.cwd / "back")


def test_nothing_is_written_where_the_key_is_wrong(faults: Faults) -> None:
    faults.env["AWS_SECRET_ACCESS_KEY"] = "a-wrong-secret"
    done = faults.run("sync", "src", "s3://faults/p")
    assert done.returncode == 1
    assert "403" in done.stderr and "a-wrong-secret" not in done.stderr + done.stdout
    assert "Contents" not in faults.server.client.list_objects_v2(Bucket="faults")
