# SPDX-License-Identifier: Apache-2.0
"""Released files and lazy imports as a user who is not root, and disks that fill up."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from conftest import Millrace, kill
from links import NOBODY, Linked, within
from s3_fixture import S3

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine


@pytest.fixture
def linked(millrace: Millrace, s3: S3, tmp_path: Path) -> Callable[..., Linked]:
    return lambda *options: Linked(millrace, s3, tmp_path, *options)


@pytest.fixture
def nobodys_folder() -> Iterator[Path]:
    """A folder of a user who is not root, on a file system with holes, attributes and leases."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        folder.chmod(0o755)
        yield folder


class AsNobody:
    """Runs commands as a user who is not root."""

    def __init__(self, binary: str, folder: Path, env: dict[str, str]):
        # Root's home, where the binary may lie, is closed to others.
        self.binary = folder.parent / f"{folder.name}-millrace"
        shutil.copy(binary, self.binary)
        # Nor may this user write where root's runs keep temporary files.
        self.folder, self.env = folder, env | {"HOME": str(folder), "TMPDIR": str(folder)}

    def __call__(self, *command: object, status: int = 0) -> str:
        done = subprocess.run(timeout=120, **self.started(command))
        assert done.returncode == status, done
        return done.stdout + done.stderr

    def start(self, *command: object) -> subprocess.Popen:
        # A shell that runs pytest in the background lets it, and so its children, ignore Ctrl-C.
        return subprocess.Popen(
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **self.started(command)
        )

    def started(self, command: Sequence[object]) -> dict:
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        words = [str(each) for each in command]
        if words[0] == "millrace":
            words[0] = str(self.binary)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return {"args": words, "cwd": self.folder, "env": self.env} | pipes | user


def test_released_files_give_errors_and_never_zeros(binary: str, s3: S3, nobodys_folder: Path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")} | s3.env
    run = AsNobody(binary, nobodys_folder, env | {"MILLRACE_LINKS": str(nobodys_folder / "links")})
    url = f"s3://{s3.bucket()}/data"
    directory = nobodys_folder / "directory"
    content = {f"part-{n}/shard-{n}.tar": random.Random(n).randbytes(3 << 20) for n in range(3)}
    try:
        run("mkdir", directory)
        for path in content:
            run("mkdir", "-p", (directory / path).parent)
            run("python3", "-c", f"import random; open({str(directory / path)!r}, 'wb').write("
                f"random.Random({path[5]}).randbytes(3 << 20))")  # fmt: skip
            run("chmod", "640", directory / path)
        run("millrace", "link", "add", directory, url, "--name=one", "--quiet-time=0s", "--export=new,changed,deleted")
        run("millrace", "link", "run", "one", "--once")
        before = {path: (directory / path).stat() for path in content}

        # One is open in another program, one has changed since it was sent.
        with (directory / "part-1/shard-1.tar").open("rb"):
            with (directory / "part-2/shard-2.tar").open("r+b") as file:
                file.write(b"changed")
            told = run("millrace", "link", "release", directory)
        assert "part-1/shard-1.tar: open in another program" in told
        assert "part-2/shard-2.tar: not proven" in told
        info = (directory / "part-0/shard-0.tar").stat()
        assert info.st_blocks * 512 < 64 << 10 and info.st_size == 3 << 20 and info.st_mode & 0o777 == 0
        assert info.st_mtime_ns == before["part-0/shard-0.tar"].st_mtime_ns
        assert "Permission denied" in run("cat", directory / "part-0/shard-0.tar", status=1)
        # A copy gets the permissions that the file has with its content.
        run("millrace", "cp", "-r", directory / "part-0", nobodys_folder / "copy", "--posix")
        assert (nobodys_folder / "copy/shard-0.tar").stat().st_mode & 0o777 == 0o640
        bucket = s3.bucket()
        for copied in (1, 0):
            told = run("millrace", "sync", directory / "part-0", f"s3://{bucket}/copy", "--posix", "--json")
            summary = next(line for line in told.splitlines() if '"transfer_summary"' in line)  # beside stderr's lines
            assert json.loads(summary)["copied_files"] == copied, told
        head = s3.client.head_object(Bucket=bucket, Key="copy/shard-0.tar")
        assert int(head["Metadata"]["file-permissions"], 8) & 0o777 == 0o640
        run("millrace", "link", "run", "one", "--once")  # sends the change, and not the stub
        assert "1 file" in run("millrace", "link", "status")
        run("millrace", "link", "release", directory / "part-1")
        assert "2 files, 6.29 MB" in run("millrace", "link", "status")
        assert "restore" in run("millrace", "link", "rm", "one", status=1)

        # A renamed stub is renamed in the bucket; its content never passes.
        run("mv", directory / "part-1", directory / "moved")
        events = run("millrace", "link", "run", "one", "--once")
        assert "move" in events and "export " not in events
        # Released files are known again when the state is lost.
        for name in ("state.db", "state.db-wal", "state.db-shm"):
            (nobodys_folder / "links/one" / name).unlink(missing_ok=True)
        run("millrace", "link", "run", "one", "--once")
        assert "2 files, 6.29 MB" in run("millrace", "link", "status")
        (nobodys_folder / "order.txt").write_text("moved/shard-1.tar\n")
        restored = run("millrace", "link", "restore", directory, "--order", nobodys_folder / "order.txt", "--json")
        files = [json.loads(line) for line in restored.splitlines()]
        names = [each["path"] for each in files if each["type"] == "link_restore_file"]
        assert sorted(names) == ["moved/shard-1.tar", "part-0/shard-0.tar"]
        assert (directory / "moved/shard-1.tar").read_bytes() == content["part-1/shard-1.tar"]
        info = (directory / "part-0/shard-0.tar").stat()
        assert (directory / "part-0/shard-0.tar").read_bytes() == content["part-0/shard-0.tar"]
        assert info.st_mode & 0o777 == 0o640 and info.st_mtime_ns == before["part-0/shard-0.tar"].st_mtime_ns
        assert run("millrace", "link", "run", "one", "--once") == "", "nothing has changed"
    finally:
        run.binary.unlink()


@pytest.fixture
def small_disk(nobodys_folder: Path) -> Iterator[Path]:
    """A file system of 32 MiB that anybody may write to."""
    disk = nobodys_folder / "disk"
    disk.mkdir(mode=0o777)
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m,mode=777", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    try:
        probe = disk / "probe"
        probe.touch()
        try:
            os.setxattr(probe, "user.probe", b"1")
        except OSError:
            pytest.skip("this kernel keeps no attributes on tmpfs")
        probe.unlink()
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_link_that_runs_keeps_space_free(binary: str, s3: S3, small_disk: Path):
    folder = small_disk.parent
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")} | s3.env
    run = AsNobody(binary, folder, env | {"MILLRACE_LINKS": str(folder / "links")})
    directory, url = small_disk / "directory", f"s3://{s3.bucket()}/data"
    names = ["old.tar", "other.tar", "pinned/index.json", "soon.tar"]
    process = None
    try:
        run("mkdir", "-p", directory / "pinned")
        for name in names:
            run("python3", "-c", f"open({str(directory / name)!r}, 'wb').write(b'x' * (6 << 20))")
        (folder / "order.txt").write_text(f"{url}/soon.tar\n")
        run("millrace", "link", "add", directory, url, "--name=one", "--quiet-time=0s", "--poll=200ms",
            "--keep-free=30:60", "--pin=*.json", f"--next-use={folder / 'order.txt'}")  # fmt: skip
        process = run.start("millrace", "link", "run", "one", "--json")

        def released() -> list[str]:
            return [name for name in names if (directory / name).stat().st_mode & 0o777 == 0]

        within(60, lambda: released() == ["old.tar", "other.tar"])
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert "2 released, 12.6 MB; 62" in err, err
        events = [json.loads(line) for line in out.splitlines()]
        assert sorted(each["path"] for each in events if each["event"] == "release") == ["old.tar", "other.tar"]
        for name in ("pinned/index.json", "soon.tar"):
            assert (directory / name).read_bytes() == b"x" * (6 << 20)
        # An object that went while nobody looked is not made the only copy, whatever was proven before.
        s3.client.delete_object(Bucket=url.split("/")[2], Key="data/soon.tar")
        told = run("millrace", "link", "release", directory / "soon.tar")
        assert "left  soon.tar" in told
        assert (directory / "soon.tar").read_bytes() == b"x" * (6 << 20)
    finally:
        if process and process.poll() is None:
            kill(process)
        run.binary.unlink()


def test_lazy_imports_have_no_content_until_it_is_needed(binary: str, s3: S3, nobodys_folder: Path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")} | s3.env
    run = AsNobody(binary, nobodys_folder, env | {"MILLRACE_LINKS": str(nobodys_folder / "links")})
    bucket, directory = s3.bucket(), nobodys_folder / "directory"
    content = {f"folder/{n}.tar": random.Random(n).randbytes(2 << 20) for n in range(4)}

    def put(path: str, data: bytes) -> None:
        s3.client.put_object(Bucket=bucket, Key=f"data/{path}", Body=data)

    try:
        for path, data in content.items():
            put(path, data)
        put("empty", b"")
        run("mkdir", directory)
        run("millrace", "link", "add", directory, f"s3://{bucket}/data", "--name=one", "--quiet-time=0s", "--lazy",
            "--import=new,changed,deleted", "--export=new,changed,deleted")  # fmt: skip
        run("millrace", "link", "run", "one", "--once")
        for path, data in content.items():
            info = (directory / path).stat()
            assert (info.st_size, info.st_blocks * 512 < 64 << 10, info.st_mode & 0o777) == (len(data), True, 0)
        assert (directory / "empty").stat().st_mode & 0o777 != 0
        assert "4 files, 8.39 MB" in run("millrace", "link", "status")
        assert "Permission denied" in run("cat", directory / "folder/0.tar", status=1)
        assert run("millrace", "link", "run", "one", "--once") == "", "a stub is nobody's change"
        # Our own readers get the content from the bucket, in the version that the stub stands for.
        run("millrace", "cp", directory / "folder/0.tar", nobodys_folder / "copy")
        assert (nobodys_folder / "copy").read_bytes() == content["folder/0.tar"]
        other = random.Random(8).randbytes(2 << 20)
        put("folder/2.tar", other)
        told = run("millrace", "cp", directory / "folder/2.tar", nobodys_folder / "copy", status=1)
        assert "only in the bucket" in told and "link restore" in told, told
        # What asks for the content of the file itself says why it has none.
        run("mkdir", "-p", nobodys_folder / "other/folder")
        run("cp", nobodys_folder / "copy", nobodys_folder / "other/folder/0.tar")
        for told in (
            run("millrace", "verify", directory, nobodys_folder / "other", status=3),
            run("millrace", "sync", directory, nobodys_folder / "other", "--checksum", status=1),
        ):
            assert "as a released file of a link" in told and "link restore" in told, told

        # A stub follows its object: changed, and removed.
        content["folder/2.tar"] = random.Random(9).randbytes(3 << 20)
        put("folder/2.tar", content["folder/2.tar"])
        s3.client.delete_object(Bucket=bucket, Key="data/folder/3.tar")
        run("millrace", "link", "run", "one", "--once")
        info = (directory / "folder/2.tar").stat()
        assert (info.st_size, info.st_mode & 0o777) == (3 << 20, 0)
        assert not (directory / "folder/3.tar").exists()
        run("millrace", "link", "restore", directory)
        for path in ("folder/0.tar", "folder/1.tar", "folder/2.tar"):
            assert (directory / path).read_bytes() == content[path]
            assert (directory / path).stat().st_mode & 0o777 == 0o644
        # What has content keeps having it.
        put("folder/0.tar", b"new")
        run("millrace", "link", "run", "one", "--once")
        assert (directory / "folder/0.tar").read_bytes() == b"new"
        assert run("millrace", "link", "run", "one", "--once") == ""

        # A link whose directory is gone can be forgotten.
        put("late", b"x" * 9000)
        run("millrace", "link", "run", "one", "--once")
        run("rm", "-rf", directory)
        assert "link rm --force one" in run("millrace", "link", "rm", "one", status=1)
        run("millrace", "link", "rm", "--force", "one")
        assert s3.client.head_object(Bucket=bucket, Key="data/late")["ContentLength"] == 9000
        # A folder of another user above it is an error that names it.
        run("mkdir", directory)
        if os.geteuid() == 0:
            (nobodys_folder / ".millrace").mkdir(0o700)
            told = run("millrace", "link", "add", directory, f"s3://{bucket}/data", status=1)
            assert "look for" in told and "Permission denied" in told and "filesystem error" not in told, told
    finally:
        run.binary.unlink()


def test_a_directory_that_fills_up(linked: Callable[..., Linked], tmp_path: Path):
    (tmp_path / "directory").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path / "directory")]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    try:
        link = linked()
        content = random.Random(1).randbytes(6 << 20)
        link.write("here", content)
        link.put("there", content)
        failed = [each for each in link.once(status=3) if each["event"] == "fail"]
        assert [each["path"] for each in failed] == ["there"] and "space" in failed[0]["reason"], failed
        assert link.files() == {"here": content}, "nothing half written"
        assert link.status(status=3)["latest_problems"][0]["path"] == "there"
        assert set(link.objects()) == {"here", "there"}
        (link.directory / "here").unlink()
        link.once()
        assert link.files() == {"there": content}
        assert link.status()["problems"] == 0
    finally:
        subprocess.run(["umount", "-l", tmp_path / "directory"], check=True)


HOLD_THE_STATE = """
import sqlite3, sys
state = sqlite3.connect(sys.argv[1], isolation_level=None)
state.execute("begin immediate")
print("held", flush=True)
sys.stdin.readline()
state.execute("rollback")
"""


def test_a_release_that_waits_for_the_state_keeps_no_file(binary: str, s3: S3, nobodys_folder: Path):
    """A sweep that has the state may be waiting for that very file."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")} | s3.env
    links = nobodys_folder / "links"
    run = AsNobody(binary, nobodys_folder, env | {"MILLRACE_LINKS": str(links)})
    directory = nobodys_folder / "directory"
    started = []
    try:
        run("mkdir", directory)
        run("python3", "-c", f"open({str(directory / 'file')!r}, 'wb').write(b'x' * (3 << 20))")
        run("millrace", "link", "add", directory, f"s3://{s3.bucket()}/data", "--name=one", "--quiet-time=0s")
        run("millrace", "link", "run", "one", "--once")
        run("millrace", "link", "wait", directory)  # so that the proof is known
        holder = run.start("python3", "-c", HOLD_THE_STATE, links / "one/state.db")
        started.append(holder)
        assert holder.stdout.readline() == "held\n"
        release = run.start("millrace", "link", "release", directory)
        started.append(release)
        until = time.monotonic() + 2
        while time.monotonic() < until:
            # Fails while another process has a lease.
            os.close(os.open(directory / "file", os.O_RDONLY | os.O_NONBLOCK))
            time.sleep(0.001)
        assert release.poll() is None, "it waits"
        holder.communicate("\n", timeout=30)
        out, err = release.communicate(timeout=30)
        assert release.returncode == 0 and (directory / "file").stat().st_mode & 0o777 == 0, (out, err)
    finally:
        for process in started:
            kill(process)
        run.binary.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
def test_root_may_not_release(linked: Callable[..., Linked]):
    link = linked()
    link.write("a", b"a")
    link.once()
    assert "root reads zeros" in link.millrace.fails("link", "release", link.directory)
    assert link.files() == {"a": b"a"}
    millrace = link.millrace
    lazy = link.directory.parent / "lazy"
    lazy.mkdir()
    millrace("link", "add", lazy, f"{link.url}/lazy", "--lazy")
    assert "root would read zeros" in millrace.fails("link", "run", "lazy", "--once")
