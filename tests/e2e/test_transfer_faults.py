# SPDX-License-Identifier: Apache-2.0
"""Targets that go wrong: full, read-only, gone. Each ends in a correct copy or a clear error, and never in
a part of a file."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from conftest import Millrace, kill
from test_transfer import make


def mount(at: Path, *arguments: str) -> None:
    at.mkdir(exist_ok=True)
    if os.geteuid() != 0 or subprocess.run(["mount", *arguments, at], capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")


@pytest.fixture
def small(tmp_path: Path):
    """A disk of 4 MiB."""
    at = tmp_path / "small"
    mount(at, "-t", "tmpfs", "-o", "size=4m,nr_inodes=5000,mode=777", "tmpfs")
    yield at
    subprocess.run(["umount", "-l", at], check=True)


def whole_files(root: Path, source: Path) -> int:
    """Every file below `root` but our own is one of the source, whole; answers how many there are."""
    count = 0
    for path in root.rglob("*"):
        relative = path.relative_to(root)
        if not path.is_file() or relative.parts[0] == ".millrace":
            continue
        assert ".millrace-tmp." not in path.name, path
        assert path.read_bytes() == (source / relative).read_bytes(), path
        count += 1
    return count


def test_what_does_not_fit_is_said_before_a_byte_is_written(millrace: Millrace, small: Path, tmp_path: Path):
    make(tmp_path / "src", {"a": b"a" * (3 << 20), "b": b"b" * (3 << 20)})
    for verb in (
        ["sync", "src", small / "to"],
        ["cp", "src", small / "to", "--recursive"],
        ["stage", "src", small / "to"],
    ):
        error = millrace(*verb, status=1).err
        assert "6.29 MB" in error and "4.19 MB are free (the file system)" in error and "make room" in error, error
    assert list(small.rglob("*")) == []


def test_a_disk_that_fills_up_in_the_middle(millrace: Millrace, small: Path, tmp_path: Path):
    # Each file takes a page, which no sum of sizes tells.
    make(tmp_path / "src", {f"{i:04}": b"%d" % i for i in range(2000)})
    ran = millrace("sync", "src", small / "to", "--json", status=1)
    assert "No space left on device" in ran.err
    copied = whole_files(small / "to", tmp_path / "src")
    assert 0 < copied < 2000
    subprocess.run(["mount", "-o", "remount,size=32m", small], check=True)
    millrace("sync", "src", small / "to")
    assert whole_files(small / "to", tmp_path / "src") == 2000


def test_a_large_file_where_others_take_the_room(millrace: Millrace, small: Path, tmp_path: Path):
    make(tmp_path / "src", {"small": b"1", "large": os.urandom(3 << 20)})
    (small / "to").mkdir()
    (small / "to" / "large").write_bytes(b"the old one")
    (small / "others").write_bytes(bytes(2 << 20))
    assert "are free" in millrace("sync", "src", small / "to", status=1).err
    assert (small / "to" / "large").read_bytes() == b"the old one"
    (small / "others").unlink()
    millrace("sync", "src", small / "to")
    assert whole_files(small / "to", tmp_path / "src") == 2


def test_a_read_only_target(millrace: Millrace, small: Path, tmp_path: Path):
    make(tmp_path / "src", {"a": b"new", "b": b"new"})
    make(small / "to", {"a": b"the old one"})
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    assert "Read-only file system" in millrace("sync", "src", small / "to", status=1).err
    assert "Read-only file system" in millrace.fails("cp", "src/a", small / "to" / "a")
    assert [p.name for p in (small / "to").iterdir()] == ["a"]
    assert (small / "to" / "a").read_bytes() == b"the old one"


def test_a_limit_on_the_size_of_files(millrace: Millrace, tmp_path: Path):
    make(tmp_path / "src", {"large": os.urandom(20 << 20), "small": b"1"})
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 2048; exec "$@"', "sh", millrace.binary, "sync", "src", "dst"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "File too large" in done.stderr, done
    assert whole_files(tmp_path / "dst", tmp_path / "src") == 1


@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_a_target_that_vanishes(millrace: Millrace, tmp_path: Path, how: str):
    make(tmp_path / "src", {f"d{i % 7}/{i:05}": os.urandom(2000) for i in range(3000)})
    target = tmp_path / "dst"
    running = millrace.start("sync", "src", target)
    while running.poll() is None and not (target / "d3").exists():
        time.sleep(0.001)
    if how == "removed":
        shutil.rmtree(target, ignore_errors=True)
    else:
        target.rename(tmp_path / "away")
        assert whole_files_or_unfinished(tmp_path / "away", tmp_path / "src") >= 0
    running.communicate(timeout=60)
    if target.exists():
        whole_files(target, tmp_path / "src")
    millrace("sync", "src", target)
    assert whole_files(target, tmp_path / "src") == 3000


def whole_files_or_unfinished(root: Path, source: Path) -> int:
    """As whole_files, while a process may be writing there."""
    visible = [p for p in root.rglob("*") if p.is_file() and not p.relative_to(root).parts[0].startswith(".millrace")]
    finished = [p for p in visible if ".millrace-tmp." not in p.name]
    for path in finished:
        assert path.read_bytes() == (source / path.relative_to(root)).read_bytes(), path
    return len(finished)


def test_killed_while_the_disk_is_full(millrace: Millrace, small: Path, tmp_path: Path):
    make(tmp_path / "src", {f"{i:04}": b"%d" % i for i in range(2000)})
    for _ in range(20):
        running = millrace.start("sync", "src", small / "to")
        while running.poll() is None and not (small / "to").exists():
            time.sleep(0.001)
        if kill(running):
            break
        shutil.rmtree(small / "to")
    else:
        pytest.fail("it ended before it could be killed, 20 times")
    subprocess.run(["mount", "-o", "remount,size=32m", small], check=True)
    millrace("sync", "src", small / "to")
    assert whole_files(small / "to", tmp_path / "src") == 2000
