# SPDX-License-Identifier: Apache-2.0
"""Links from Python: status, the barrier, checkpoints that wait for the bucket, and files whose content is only there,
which every reader of the package gets from the bucket or refuses, and never takes for zeros."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import millrace as mr

PROGRAM = os.environ.get("MILLRACE_BIN", "millrace")


def run(*words: object) -> None:
    subprocess.run([PROGRAM, "link", *map(str, words)], check=True, stdout=subprocess.DEVNULL, timeout=120)


class Link:
    """A directory and a folder that is its bucket."""

    def __init__(self, folder: Path):
        self.directory, self.bucket = folder / "directory", folder / "bucket"
        self.directory.mkdir()
        self.bucket.mkdir()
        run("add", self.directory, self.bucket, "--name=one", "--quiet-time=0s", "--poll=200ms", "--poll-most=1s")
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        self.process = subprocess.Popen([PROGRAM, "link", "run", "one"], stdout=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while not (mr.link.status(self.directory)["running"] and mr.link.status(self.directory)["last_sweep"]):
            assert time.monotonic() < until
            time.sleep(0.05)

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def make_stubs(self) -> None:
        """Of all files, as `millrace link release` leaves them, which root may not call."""
        for path in [path for path in self.directory.rglob("*") if path.is_file() and ".millrace" not in path.parts]:
            info = path.stat()
            os.truncate(path, 0)
            os.truncate(path, info.st_size)
            os.setxattr(path, "user.millrace.stub", b"1")
            path.chmod(0)
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # a file system with attributes
        monkeypatch.setenv("MILLRACE_LINKS", f"{name}/links")
        made = Link(Path(name))
        yield made
        made.stop()


def test_status_and_wait(link: Link, tmp_path: Path) -> None:
    (link.directory / "a").mkdir()
    (link.directory / "a/file").write_bytes(os.urandom(300_000))
    (link.directory / "b").write_bytes(b"b")
    with pytest.raises(ConnectionError, match="no process runs the link"):
        mr.link.wait(link.directory)
    link.start()
    waited = mr.link.wait(link.directory / "a", timeout=60)
    assert waited["files"] == 1 and waited["bytes"] == 300_000 and sum(waited["proofs"].values()) == 1
    assert (link.bucket / "a/file").read_bytes() == (link.directory / "a/file").read_bytes()
    assert mr.link.wait(str(link.directory))["files"] == 2
    status = mr.link.status(link.directory / "a")
    assert status["name"] == "one" and status["running"] and status["files"] == 2 and status["problems"] == 0
    assert mr.link.statuses() == [status | {key: mr.link.statuses()[0][key] for key in ("behind_s", "last_sweep")}]
    # A wait for a file that cannot be carried times out.
    link.stop()
    link.start()
    (link.bucket / "b").write_bytes(b"other")
    (link.directory / "c").write_bytes(b"c")
    with (link.directory / "open").open("wb") as file:  # is being written
        file.write(b"not finished")
        file.flush()
        with pytest.raises(TimeoutError, match="open first"):
            mr.link.wait(link.directory / "open", timeout=0.5)
    with pytest.raises(FileNotFoundError, match="no such file"):
        mr.link.wait(link.directory / "misspelt")
    for call in (mr.link.status, mr.link.wait, mr.link.release, mr.link.restore):
        with pytest.raises(FileNotFoundError, match="lies in no link"):
            call(tmp_path)
    with pytest.raises(TypeError, match=r"wait\(\): timeout is float"):
        mr.link.wait(link.directory, timeout="5s")  # type: ignore[arg-type]


def test_results_are_typed(link: Link) -> None:
    (link.directory / "file").write_bytes(b"x")
    link.start()
    mr.link.wait(link.directory)
    results = {
        "LinkStatusResult": mr.link.status(link.directory),
        "LinkWaitResult": mr.link.wait(link.directory),
        "LinkReleaseResult": mr.link.release(link.directory, keep_free=0.01, next_use=[link.directory / "file"],
                                             dry_run=True),
        "LinkRestoreResult": mr.link.restore(link.directory, order=[str(link.directory / "file")], dry_run=True),
    }  # fmt: skip
    for name, result in results.items():
        declared = typing.get_type_hints(getattr(mr.results, name))
        assert set(result) == set(declared), name
    with pytest.raises(ValueError, match="keep_free is a share"):
        mr.link.release(link.directory, keep_free=20)
    with pytest.raises(ValueError, match="lies neither below"):
        mr.link.release(link.directory, next_use=["/elsewhere"], dry_run=True)
    with pytest.raises(FileNotFoundError, match="misspelt"):
        mr.link.restore(link.directory / "misspelt")
    if os.geteuid() == 0:
        with pytest.raises(PermissionError, match="root reads zeros"):
            mr.link.release(link.directory)


def test_a_checkpoint_waits_until_the_bucket_has_it(link: Link) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    root = link.directory / "run1"
    with mr.torch.Checkpointer(root, rank=0, world_size=1) as checkpointer:
        save = checkpointer.save(5, {"weights": torch.arange(100_000)})
        with pytest.raises(ConnectionError, match="no process runs the link"):
            save.wait(tier=link.bucket / "run1")
        assert save.done
        link.start()
        save = checkpointer.save(6, {"weights": torch.ones(1000)})
        save.wait(tier=link.bucket / "run1", timeout=60)
        here = {path.relative_to(root): path.read_bytes() for path in (root / "step-000000000006").rglob("*.*")}
        there = {path: (link.bucket / "run1" / path).read_bytes() for path in here}
        assert here == there and len(here) == 3
        with pytest.raises(ValueError, match=r"keeps .*directory/run2 there, which is none of them"):
            save.wait(tier=link.bucket / "run2")
        with pytest.raises(ValueError, match="no link of this user and machine has it"):
            save.wait(tier="s3://elsewhere/run1")
    state = {"weights": torch.zeros(1000)}
    assert mr.torch.Checkpointer(link.bucket / "run1", rank=0, world_size=1).restore(state) == 6
    assert bool((state["weights"] == 1).all())


def readers(link: Link, tmp_path: Path) -> dict[str, Callable[[], object]]:
    """What reads files of the link, each the content of another kind."""
    directory = link.directory

    def batches() -> object:
        with mr.Loader(directory / "shards", seq_len=64, batch_size=4) as loader:
            return [next(loader)["input_ids"].copy() for _ in range(8)]

    def prepared() -> object:
        mr.prepare(
            directory / "raw.txt", tokenizer=directory / "tokenizer.json", out=tmp_path / "out", documents="paragraph"
        )
        with mr.Loader(tmp_path / "out", seq_len=64, batch_size=2) as loader:
            got = [next(loader)["input_ids"].copy() for _ in range(3)]
        shutil.rmtree(tmp_path / "out")
        return got

    def copied() -> object:
        mr.cp(directory / "raw.txt", tmp_path / "copy", records=False)
        content = (tmp_path / "copy").read_bytes()
        (tmp_path / "copy").unlink()
        return content

    def read() -> object:
        with mr.open(directory / "raw.txt", "rb") as file:
            return file.read()

    def restored() -> object:
        import torch

        state = {"weights": torch.zeros(1000)}
        with mr.torch.Checkpointer(directory / "ckpt", rank=0, world_size=1) as checkpointer:
            checkpointer.restore(state, step=1)
        return state["weights"].numpy()

    return {
        "open": read,
        "cp": copied,
        "tokenizer": lambda: mr.Tokenizer.from_file(directory / "tokenizer.json").encode("one text").tolist(),
        "prepare": prepared,
        "loader": batches,
        "checkpoint": restored,
    }


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list) and ours and isinstance(ours[0], np.ndarray):
        return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    return np.array_equal(ours, theirs) if isinstance(ours, np.ndarray) else ours == theirs


@pytest.mark.parametrize("node", ["of the link", "another"])
def test_readers_get_what_is_only_in_the_bucket_and_never_zeros(
    link: Link, dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: str
) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    shutil.copytree(dataset.shards, link.directory / "shards")
    shutil.copy(dataset.tokenizer, link.directory / "tokenizer.json")
    (link.directory / "raw.txt").write_bytes(next(iter(dataset.raw.iterdir())).read_bytes()[:50_000])
    with mr.torch.Checkpointer(link.directory / "ckpt", rank=0, world_size=1) as checkpointer:
        checkpointer.save(1, {"weights": torch.arange(1000.0)}).wait()
    run("run", "one", "--once")
    calls = readers(link, tmp_path)
    before = {name: call() for name, call in calls.items()}
    link.make_stubs()
    if node == "another":
        monkeypatch.setenv("MILLRACE_LINKS", str(tmp_path / "none"))
    for name, call in calls.items():
        assert same(call(), before[name]), name
    assert all(path.stat().st_mode & 0o777 == 0 for path in (link.directory / "shards").iterdir()), "they stay stubs"

    if node == "of the link":
        # A restore does not take what it would read for what is there.
        run("run", "one", "--once")
        assert mr.link.restore(link.directory / "shards")["files"] == len(list((link.directory / "shards").iterdir()))
        for path in (link.directory / "shards").iterdir():
            assert path.read_bytes() == (link.bucket / "shards" / path.name).read_bytes(), path
        link.make_stubs()

    # Its content is lost, or somebody put another one there: an error that says how to go on, and no zeros.
    for path in [path for path in link.bucket.rglob("*") if path.is_file() and ".millrace" not in path.parts]:
        path.write_bytes(path.read_bytes() + b"more") if path.name == "tokenizer.json" else path.unlink()
    for name, call in calls.items():
        with pytest.raises((OSError, mr.CorruptionError), match="only in the bucket"):
            print(name, call())  # for a failure: what came instead
