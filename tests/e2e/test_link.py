# SPDX-License-Identifier: Apache-2.0
"""A directory kept in step with a bucket of the real S3 server: the verbs, kills, a server that goes away, and released
files as a user who is not root."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import botocore.session
import pytest
from botocore.client import BaseClient
from conftest import Millrace, kill
from s3_fixture import S3

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

NOBODY = 65534


def within(seconds: float, holds: Callable[[], object]) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, holds
        time.sleep(0.05)


class Linked:
    """A link between a directory and a bucket."""

    def __init__(self, millrace: Millrace, s3: S3, folder: Path, *options: object):
        self.millrace, self.s3, self.bucket = millrace, s3, s3.bucket()
        self.directory = folder / "directory"
        self.directory.mkdir(exist_ok=True)
        millrace.env = millrace.env | s3.env | {"MILLRACE_LINKS": str(folder / "links")}
        self.url = f"s3://{self.bucket}/data"
        if not any(str(each).startswith("--poll") for each in options):
            options += ("--poll=200ms", "--poll-most=1s")
        millrace("link", "add", self.directory, self.url, "--name=one", "--quiet-time=0s", *options)

    def once(self, status: int = 0) -> list[dict]:
        return self.millrace("link", "run", "one", "--once", "--json", status=status).objects("link_event")

    def status(self, status: int = 0) -> dict:
        return self.millrace("link", "status", "one", "--json", status=status).object("link_status")

    def write(self, path: str, content: bytes) -> None:
        (self.directory / path).parent.mkdir(parents=True, exist_ok=True)
        (self.directory / path).write_bytes(content)

    def put(self, path: str, content: bytes, **options: object) -> None:
        self.s3.client.put_object(Bucket=self.bucket, Key=f"data/{path}", Body=content, **options)

    def files(self) -> dict[str, bytes]:
        found = {}
        for path in self.directory.rglob("*"):
            if ".millrace" in path.parts or not path.is_file():
                continue
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found[str(path.relative_to(self.directory))] = path.read_bytes()
        return found

    def objects(self) -> dict[str, bytes]:
        client = self.s3.client
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix="data/")
        keys = [each["Key"] for page in pages for each in page.get("Contents", []) if ".millrace" not in each["Key"]]
        found = {}
        for key in keys:
            with contextlib.suppress(client.exceptions.NoSuchKey):  # removed meanwhile
                found[key.removeprefix("data/")] = client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return found


@pytest.fixture
def linked(millrace: Millrace, s3: S3, tmp_path: Path) -> Callable[..., Linked]:
    return lambda *options: Linked(millrace, s3, tmp_path, *options)


@pytest.fixture
def running(linked: Callable[..., Linked]) -> Iterator[Callable[..., tuple[Linked, subprocess.Popen]]]:
    started: list[subprocess.Popen] = []

    def start(*options: object) -> tuple[Linked, subprocess.Popen]:
        link = linked(*options)
        started.append(link.millrace.start("link", "run", "one", "--json"))
        return link, started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            kill(process)


def test_new_changed_and_removed_files_go_both_ways(linked: Callable[..., Linked]):
    link = linked("--import=new,changed,deleted", "--export=new,changed,deleted")
    large = random.Random(1).randbytes(20 << 20)
    link.write("from here/ä.txt", b"one")
    link.write("large", large)
    link.put("from/there", b"two", Metadata={"file-permissions": "0100640", "file-mtime": "1700000000000000000ns"})
    events = {(each["event"], each["path"]) for each in link.once()}
    assert events == {("export", "from here/ä.txt"), ("export", "large"), ("import", "from/there")}
    assert link.files() == link.objects() == {"from here/ä.txt": b"one", "from/there": b"two", "large": large}
    info = (link.directory / "from/there").stat()
    assert info.st_mode & 0o777 == 0o640 and info.st_mtime_ns == 1_700_000_000_000_000_000
    head = link.s3.client.head_object(Bucket=link.bucket, Key="data/large")
    assert int(head["Metadata"]["file-permissions"], 8) & 0o777 == (link.directory / "large").stat().st_mode & 0o777
    assert link.once() == []

    # A change inside a large file moves what changed.
    with (link.directory / "large").open("r+b") as file:
        file.seek(9 << 20)
        file.write(b"changed")
    (event,) = link.once()
    assert event["path"] == "large" and 0 < event["moved_bytes"] <= 8 << 20
    (link.directory / "from here/ä.txt").unlink()
    link.s3.client.delete_object(Bucket=link.bucket, Key="data/from/there")
    assert {each["event"] for each in link.once()} == {"delete_there", "delete_here"}
    assert set(link.files()) == set(link.objects()) == {"large"}
    # Both lie in a trash.
    trash = [path.read_bytes() for path in (link.directory / ".millrace/trash").rglob("*") if path.is_file()]
    assert trash == [b"two"]
    listed = link.s3.client.list_objects_v2(Bucket=link.bucket, Prefix="data/.millrace/trash/")["Contents"]
    assert len(listed) == 1 and listed[0]["Key"].endswith("/from here/ä.txt")
    status = link.status()
    assert not status["running"] and status["files"] == 1 and status["problems"] == 0


def test_a_running_link_follows_in_seconds_and_wait_proves_it(running: Callable):
    link, process = running("--import=new,changed,deleted", "--export=new,changed,deleted")
    within(120, lambda: link.status()["last_sweep"])
    link.write("step-1/model", os.urandom(3 << 20))
    link.write("step-1/done", b"")
    link.put("shard", b"from there")
    waited = link.millrace("link", "wait", link.directory / "step-1", "--within=60s", "--json").object("link_wait")
    assert waited["files"] == 2 and set(waited["proofs"]) <= {"etag", "content"}
    assert set(link.objects()) >= {"step-1/model", "step-1/done"}
    within(120, lambda: (link.directory / "shard").exists())
    shutil.rmtree(link.directory / "step-1")
    within(120, lambda: set(link.objects()) == {"shard"})
    assert "runs this link" in link.millrace.fails("link", "run", "one", "--once")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert all(json.loads(line)["type"] == "link_event" for line in out.splitlines())
    link.write("late", b"x")
    assert "millrace link run one" in link.millrace.fails("link", "wait", link.directory / "late")


@pytest.mark.long
def test_sixteen_links_of_one_process(millrace: Millrace, s3: S3, tmp_path: Path):
    bucket = s3.bucket()
    millrace.env = millrace.env | s3.env | {"MILLRACE_LINKS": str(tmp_path / "links")}
    names = [f"link{number}" for number in range(16)]
    for name in names:
        (tmp_path / name).mkdir()
        millrace("link", "add", tmp_path / name, f"s3://{bucket}/{name}", "--quiet-time=0s", "--poll=200ms",
                 "--poll-most=1s")  # fmt: skip
    process = millrace.start("link", "run")
    try:
        for name in names:
            (tmp_path / name / "here").write_text(name)
            s3.client.put_object(Bucket=bucket, Key=f"{name}/there", Body=name.encode())

        def keys() -> set[str]:
            return {each["Key"] for each in s3.client.list_objects_v2(Bucket=bucket).get("Contents", [])}

        within(120, lambda: {f"{name}/here" for name in names} <= keys())
        within(120, lambda: all((tmp_path / name / "there").exists() for name in names))
        assert [(tmp_path / name / "there").read_text() for name in names] == names
        assert all(each["running"] for each in millrace("link", "status", "--json").objects("link_status"))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
    finally:
        if process.poll() is None:
            kill(process)


@pytest.mark.parametrize("task", [(), ("--task=0/1",)], ids=["alone", "task"])
def test_a_server_that_goes_away_is_waited_for(millrace: Millrace, tmp_path: Path, task: tuple[str, ...]):
    server = S3.start(tmp_path / "s3")
    shared = ("--take-over=60s",) if task else ()
    link = Linked(millrace, server, tmp_path, "--import=new,changed,deleted", *shared)
    try:
        link.write("a", b"a")
        link.once()
        process = millrace.start("link", "run", "one", *task)
        within(120, lambda: link.status()["running"] and link.status()["doing"] == "waiting for changes")
        gateway = millrace.env["AWS_ENDPOINT_URL"]
        server.destroy()
        link.write("b", b"b")
        within(60, lambda: link.status(status=3)["error"] if not link_is_quiet(link) else False)
        assert gateway.split("//")[1] in link.status(status=3)["error"]
        assert link.files() == {"a": b"a", "b": b"b"}, "what cannot be seen is not removed"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            kill(process)


def link_is_quiet(link: Linked) -> bool:
    shown = link.millrace.start("link", "status", "one", "--json")
    return not json.loads(shown.communicate(timeout=20)[0].splitlines()[0])["error"]


@pytest.mark.long
def test_kills_lose_nothing(linked: Callable[..., Linked], seeded: random.Random):
    link = linked("--import=new,changed,deleted", "--export=new,changed,deleted")
    rng = seeded
    written: dict[str, bytes] = {}
    for _ in range(int(os.environ.get("MILLRACE_TEST_KILLS", "8"))):
        for _ in range(6):
            path, content = f"{rng.randrange(4)}/{rng.randrange(30)}", rng.randbytes(rng.choice([10, 10_000, 9 << 20]))
            # A path is changed on one side only, so that there is no conflict to decide.
            link.write(path, content) if int(path[0]) % 2 else link.put(path, content)
            written[path] = content
        process = link.millrace.start("link", "run", "one")
        time.sleep(rng.uniform(0, 0.5))
        process.kill()
        process.communicate()
    for _ in range(2):
        process = link.millrace.start("link", "run", "one", "--once", "--json")
        out, errors = process.communicate(timeout=120)
        failed = [line for line in out.splitlines() if '"fail"' in line]
        assert process.returncode == 0 and not failed, f"{errors}\n" + "\n".join(failed)
    files = link.files()
    assert files == link.objects()
    # A kill between a copy and its line in the state makes the next change of that path a conflict, which keeps both.
    assert set(files) >= set(written) and set(files.values()) >= set(written.values())
    assert len(files) <= len(written) + link.status()["conflicts"]


def test_a_kill_costs_no_part_that_had_arrived(linked: Callable[..., Linked], seeded: random.Random):
    link = linked("--export=new,changed", "--import=new,changed")
    client, content = link.s3.client, seeded.randbytes(96 << 20)
    link.write("large", content)
    slowly = link.millrace.env
    link.millrace.env = slowly | {"MILLRACE_S3_BYTES_PER_SECOND": "20MB"}
    process = link.millrace.start("link", "run", "one")
    arrived: dict[int, int] = {}

    def some_have_arrived() -> bool:
        for upload in client.list_multipart_uploads(Bucket=link.bucket).get("Uploads", []):
            parts = client.list_parts(Bucket=link.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
            arrived.update({part["PartNumber"]: part["Size"] for part in parts.get("Parts", [])})
        return len(arrived) >= 3

    within(60, some_have_arrived)
    assert kill(process)
    link.millrace.env = slowly
    sent = [event for event in link.once() if event["event"] == "export"]
    assert [event["path"] for event in sent] == ["large"]
    assert sent[0]["moved_bytes"] <= len(content) - sum(arrived.values())
    assert link.objects() == {"large": content}
    assert not client.list_multipart_uploads(Bucket=link.bucket).get("Uploads")


def test_mistakes_are_told_before_anything_moves(linked: Callable[..., Linked], tmp_path: Path):
    link = linked()
    millrace = link.millrace
    assert "already" in millrace.fails("link", "add", link.directory, link.url, "--name=two")
    (link.directory / "below").mkdir()
    (tmp_path / "empty").mkdir()
    assert "belongs to a link" in millrace.fails("link", "add", link.directory / "below", link.url)
    assert "no directory" in millrace.fails("link", "add", tmp_path / "missing", link.url)
    assert "takes two slashes" in millrace.fails("link", "add", tmp_path / "empty", "s3:/bucket/data")
    for mistake in ("bucket/data", tmp_path / "missing"):
        told = millrace.fails("link", "add", tmp_path / "empty", mistake)
        assert "neither a URL (s3://bucket/prefix) nor a directory" in told
    other = tmp_path / "other"
    other.mkdir()
    assert "--delete" in millrace("link", "add", other, link.url, "--delete=trash:1d", status=2).err
    assert "none of new" in millrace("link", "add", other, link.url, "--import=all", status=2).err
    assert "no link" in millrace.fails("link", "run", "three")
    assert "no link" in millrace.fails("link", "wait", tmp_path)
    assert "no such file" in millrace.fails("link", "wait", link.directory / "misspelt")
    link.write("a", b"a")
    link.once()
    # The directory is not mounted: nothing is removed, and the reason is told.
    aside = tmp_path / "aside"
    link.directory.rename(aside)
    link.directory.mkdir()
    assert "not mounted" in millrace("link", "run", "one", "--once", status=1).err
    assert link.objects() == {"a": b"a"}
    link.directory.rmdir()
    aside.rename(link.directory)
    millrace("link", "rm", "one")
    assert link.files() == link.objects() == {"a": b"a"}
    assert not (link.directory / ".millrace/link.json").exists()


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
        self.folder, self.env = folder, env | {"HOME": str(folder)}

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


def test_notices_of_the_bucket_are_followed_at_once(millrace: Millrace, s3: S3, tmp_path: Path):
    """Ceph's gateway pushes them for real."""
    link = Linked(millrace, s3, tmp_path, "--import=new,changed,deleted", "--poll=10min")
    (tmp_path / "secret").write_text("only we know\n")
    process = millrace.start("link", "run", "one", "--no-watch", "--listen=127.0.0.1:0",
                             f"--secret-file={tmp_path / 'secret'}", "--json")  # fmt: skip
    try:
        assert process.stderr
        address = process.stderr.readline().split()[-1]
        topics = botocore.session.get_session().create_client(
            "sns", s3.region, endpoint_url=s3.endpoint, aws_access_key_id=s3.access_key,
            aws_secret_access_key=s3.secret_key)  # fmt: skip
        topic = f"topic-{link.bucket}"
        made = topics.create_topic(Name=topic, Attributes={"push-endpoint": address, "OpaqueData": "only we know"})
        notify = {"TopicConfigurations": [{"Id": "n", "TopicArn": made["TopicArn"], "Events": ["s3:ObjectCreated:*"]}]}
        s3.client.put_bucket_notification_configuration(Bucket=link.bucket, NotificationConfiguration=notify)
        # The first sweep is over, the next is ten minutes away: only notices bring what comes now.
        within(120, lambda: link.status()["doing"] == "waiting for changes")
        for number in range(3):
            link.put(f"folder/{number} ä+b", b"told")
        within(120, lambda: len(link.files()) == 3)
        refused = urllib.request.Request(address, data=b'{"Records": [{"s3": {"bucket": {}, "object": {}}}]}')
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(refused, timeout=10)
        process.stderr.readline()
        assert "came with no secret and is refused" in process.stderr.readline()
    finally:
        kill(process)


class Moto:
    """moto's server as S3 and SQS, which checks signatures and sends S3's notices to queues as AWS does."""

    def __init__(self, folder: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{port}"
        # The first requests make the user; from then on each must be signed by one.
        env = os.environ | {"INITIAL_NO_AUTH_ACTION_COUNT": "3"}
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        with (folder / "moto.log").open("wb") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        within(60, lambda: answers(port))
        self.keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
        users = self.client("iam")
        users.create_user(UserName="link")
        made = users.create_access_key(UserName="link")["AccessKey"]
        allowed = {"Effect": "Allow", "Action": ["s3:*", "sqs:*"], "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        users.put_user_policy(UserName="link", PolicyName="all", PolicyDocument=policy)
        self.keys = {"AWS_ACCESS_KEY_ID": made["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"]}
        self.env = self.keys | {"AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": "us-east-1"}

    def client(self, service: str) -> BaseClient:
        return botocore.session.get_session().create_client(
            service, "us-east-1", endpoint_url=self.endpoint, aws_access_key_id=self.keys["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.keys["AWS_SECRET_ACCESS_KEY"])  # fmt: skip


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.fixture
def moto(tmp_path: Path) -> Iterator[Moto]:
    server = Moto(tmp_path)
    yield server
    server.process.kill()
    server.process.wait()


def test_notices_of_a_queue_are_followed_and_removed(millrace: Millrace, tmp_path: Path, moto: Moto):
    s3, sqs = moto.client("s3"), moto.client("sqs")
    s3.create_bucket(Bucket="data")
    queue = sqs.create_queue(QueueName="notices")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    notify = {"QueueConfigurations": [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}]}
    s3.put_bucket_notification_configuration(Bucket="data", NotificationConfiguration=notify)
    foreign = {"Records": [{"eventSource": "aws:s3", "s3": {"bucket": {"name": "other"}, "object": {"key": "x"}}}]}
    sqs.send_message(QueueUrl=queue, MessageBody=json.dumps(foreign))

    def messages() -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        told = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
        return sum(int(told[name]) for name in names)

    directory = tmp_path / "directory"
    directory.mkdir()
    millrace.env = millrace.env | moto.env | {"MILLRACE_LINKS": str(tmp_path / "links")}
    # After the first sweep there is none in the time of this test: what comes is told by the queue.
    millrace("link", "add", directory, "s3://data/set", "--name=one", "--import=new,changed,deleted", "--poll=1h",
             "--quiet-time=0s")  # fmt: skip
    process = millrace.start("link", "run", "one", "--queue", queue)
    try:
        within(120, lambda: messages() == 1)  # moto's test event is removed, the foreign one stays
        within(120, lambda: millrace("link", "status", "one", "--json").object("link_status")["last_sweep"])
        names = ["folder/ä b+c.txt", "plain"]
        for name in names:
            s3.put_object(Bucket="data", Key=f"set/{name}", Body=name.encode())
        within(60, lambda: all((directory / name).exists() for name in names))
        assert [(directory / name).read_text() for name in names] == names
        within(120, lambda: messages() == 1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        assert err.count("of the bucket other, which no link here has") == 1
    finally:
        if process.poll() is None:
            kill(process)

    # A wrong secret is said, and the link goes on without the queue.
    local = tmp_path / "local"
    local.mkdir()
    (tmp_path / "there").mkdir()
    millrace("link", "add", local, tmp_path / "there", "--name=two", "--quiet-time=0s", "--poll=200ms")
    millrace.env["AWS_SECRET_ACCESS_KEY"] = "wrong"
    process = millrace.start("link", "run", "two", "--queue", queue)
    try:
        assert process.stderr
        within(120, lambda: "403" in process.stderr.readline())
        (local / "file").write_bytes(b"x")
        within(120, lambda: (tmp_path / "there/file").exists())
    finally:
        kill(process)
    assert "no URL of a queue" in millrace.fails("link", "run", "two", "--queue", "notices")


def crc32c(content: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return (crc ^ 0xFFFFFFFF).to_bytes(4, "big")


def test_wait_names_the_servers_checksum_before_the_etag(millrace: Millrace, tmp_path: Path, moto: Moto):
    s3 = moto.client("s3")
    s3.create_bucket(Bucket="data")
    # moto keeps the checksums of some uploads only.
    contents = {"with": b"a checksum of the whole", "without": b"an ETag"}
    sums = {"ChecksumAlgorithm": "CRC32C", "ChecksumCRC32C": base64.b64encode(crc32c(contents["with"])).decode()}
    s3.put_object(Bucket="data", Key="set/with", Body=contents["with"], **sums)
    request = s3.head_object(Bucket="data", Key="set/with", ChecksumMode="ENABLED")
    assert request["ChecksumCRC32C"] == sums["ChecksumCRC32C"]
    directory = tmp_path / "directory"
    directory.mkdir()
    (directory / "without").write_bytes(contents["without"])
    millrace.env = millrace.env | moto.env | {"MILLRACE_LINKS": str(tmp_path / "links")}
    millrace("link", "add", directory, "s3://data/set", "--name=one", "--quiet-time=0s")
    millrace("link", "run", "one", "--once")
    assert {each.name: each.read_bytes() for each in directory.iterdir() if each.is_file()} == contents
    assert millrace("link", "wait", directory, "--json").object("link_wait")["proofs"] == {"checksum": 1, "etag": 1}
    assert "1 by checksum, 1 by etag" in millrace("link", "wait", directory).out
