# SPDX-License-Identifier: Apache-2.0
"""A link whose files without content any program may open (`link add --show-at`): programs wait, and never read zeros."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Millrace, kill, preloaded
from links import NOBODY, Linked, within
from s3_fixture import S3
from test_link_silent import SilentProxy

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

F_OFD_SETLK = 37  # of Linux; Python has no name for it

# Reads files as any program does, and prints what it got of each.
READ = """
import hashlib, sys
for path in sys.argv[1:]:
    try:
        with open(path, "rb") as file:
            print(hashlib.sha256(file.read()).hexdigest(), flush=True)
    except OSError as error:
        print("errno", error.errno, flush=True)
"""
DENIED = {f"errno {errno.EIO}", f"errno {errno.EPERM}"}  # EPERM: a kernel before 6.13


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Guarded(Linked):
    """Such a link on a file system of its own, in memory."""

    def __init__(self, millrace: Millrace, s3: S3, folder: Path, *options: object, size: str = "256m"):
        self.disk, self.shown = folder / "disk", folder / "shown"
        self.shown.mkdir()
        self.disk.mkdir()
        self.processes: list[subprocess.Popen] = []
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(self.disk)]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
            pytest.skip("needs the right to mount a tmpfs")
        hidden = self.disk / "hidden"
        hidden.mkdir(mode=0o700)
        (folder / "directory").symlink_to(hidden / "data")
        (hidden / "data").mkdir(mode=0o755)
        super().__init__(millrace, s3, folder, "--lazy", f"--show-at={self.shown}", *options)

    def run(self, *arguments: object) -> subprocess.Popen:
        self.processes.append(self.millrace.start("link", "run", "one", "--quiet", *arguments))
        return self.processes[-1]

    def guardian(self) -> int:
        return self.shown_status()["guardian"]

    def shown_status(self) -> dict:
        shown = self.millrace.start("link", "status", "one", "--json").communicate(timeout=60)[0]
        return next(each for each in map(json.loads, shown.splitlines()) if each["type"] == "link_status")

    def waiting(self) -> int:
        text = self.millrace.start("link", "status", "one").communicate(timeout=60)[0]
        line = next(line for line in text.splitlines() if line.strip().startswith("guardian"))
        return int(line.split(",")[1].split()[0])

    def is_stub(self, path: str) -> bool:
        try:
            os.getxattr(self.directory / path, "trusted.millrace.stub")
        except OSError:
            return False
        return True

    def has_stubs(self, *paths: str) -> bool:
        return all((self.directory / path).exists() and self.is_stub(path) for path in paths)

    def start_reading(self, *paths: str) -> subprocess.Popen:
        command = ["python3", "-c", READ, *(str(self.shown / path) for path in paths)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, user=NOBODY, cwd="/")

    def read(self, path: str) -> str:
        return self.start_reading(path).communicate(timeout=300)[0].strip()

    def put_all(self, contents: dict[str, bytes]) -> None:
        """By one program: a request each by boto3 takes minutes of a busy machine."""
        with tempfile.TemporaryDirectory() as folder:
            for path, content in contents.items():
                Path(folder, path).write_bytes(content)
            self.millrace("sync", "--quiet", folder, self.url)

    def read_all(self, *paths: str) -> list[str]:
        return self.start_reading(*paths).communicate(timeout=300)[0].splitlines()

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                kill(process)
        for _ in range(2):  # a bind mount, and one that a test has left
            subprocess.run(["umount", "-l", self.shown], capture_output=True)
        with contextlib.suppress(Exception):
            os.kill(self.guardian(), signal.SIGKILL)
        subprocess.run(["umount", "-l", self.disk], check=True)


@pytest.fixture
def guarded(millrace: Millrace, s3: S3) -> Iterator[Callable[..., Guarded]]:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    made: list[Guarded] = []

    def make(*options: object, size: str = "256m") -> Guarded:
        made.append(Guarded.__new__(Guarded))
        made[0].__init__(millrace, s3, folder, *options, size=size)
        return made[0]

    yield make
    for each in made:
        each.close()
    shutil.rmtree(folder)


def test_any_program_gets_the_content_and_never_zeros(guarded: Callable[..., Guarded]):
    link = guarded()
    rng = random.Random(1)
    files = {"a.bin": rng.randbytes(9 << 20), "b/c.bin": rng.randbytes(70_001), "empty": b"", "one": b"x"}
    for path, content in files.items():
        link.put(path, content)
    link.put("program", b"#!/bin/sh\necho it ran\n", Metadata={"file-permissions": "0100755"})
    link.put("private", b"secret", Metadata={"file-permissions": "0100600", "file-owner": "0", "file-group": "0"})
    objects = {each["Key"]: each["LastModified"]
               for each in link.s3.client.list_objects_v2(Bucket=link.bucket)["Contents"]}  # fmt: skip
    process = link.run()
    within(120, lambda: link.has_stubs("a.bin", "b/c.bin", "one", "program", "private"))
    stub = (link.shown / "a.bin").stat()
    assert stub.st_size == 9 << 20 and stub.st_blocks == 0

    # Each by another way to read, as a user who is not root.
    out = tempfile.mkdtemp(dir=link.shown.parent)
    os.chown(out, NOBODY, NOBODY)
    subprocess.run(["cp", link.shown / "a.bin", f"{out}/a"], check=True, user=NOBODY)
    assert Path(out, "a").read_bytes() == files["a.bin"]
    tar = ["tar", "-S", "-cf", "-", "b"]
    packed = subprocess.run(tar, cwd=link.shown, check=True, user=NOBODY, stdout=subprocess.PIPE)
    assert files["b/c.bin"] in packed.stdout
    assert subprocess.run([link.shown / "program"], user=NOBODY, stdout=subprocess.PIPE).stdout == b"it ran\n"
    assert link.read("one") == digest(b"x") and link.read("empty") == digest(b"")
    assert link.read("private") == f"errno {errno.EACCES}"
    assert link.is_stub("private"), "what a user may not open is not brought"

    filled = (link.shown / "a.bin").stat()
    assert (filled.st_mtime_ns, filled.st_mode, filled.st_ino) == (stub.st_mtime_ns, stub.st_mode, stub.st_ino)
    assert not link.has_stubs("a.bin") and not link.has_stubs("one")
    within(60, lambda: link.status()["released"] == 1)
    # A change of a filled file is carried as ever.
    (link.shown / "one").write_bytes(b"changed")
    within(60, lambda: link.objects()["one"] == b"changed")
    after = {each["Key"]: each["LastModified"]
             for each in link.s3.client.list_objects_v2(Bucket=link.bucket)["Contents"]}  # fmt: skip
    assert {k: v for k, v in after.items() if not k.endswith("/one")} == {
        k: v for k, v in objects.items() if not k.endswith("/one")
    }
    # Released, and opened again, by its path and by a new name.
    with (link.shown / "b/c.bin").open("rb"):
        left = link.millrace("link", "release", link.shown / "b", "--json").object("link_release")
        assert (left["files"], left["left"]) == (0, 1), "a program has it open"

    def release_all() -> bool:
        """What was just written, or sent, is released a little later."""
        link.millrace("link", "release", link.shown)
        return link.has_stubs("a.bin", "b/c.bin", "one", "program")

    within(60, release_all)
    released = (link.shown / "a.bin").stat()
    assert (released.st_blocks, released.st_mtime_ns) == (0, stub.st_mtime_ns)
    (link.shown / "a.bin").rename(link.shown / "renamed.bin")
    assert link.read("renamed.bin") == digest(files["a.bin"])
    within(60, lambda: link.objects().get("renamed.bin") == files["a.bin"])
    # `restore` and programs of Millrace.
    link.millrace("cp", link.shown / "b/c.bin", f"{out}/c")
    assert Path(out, "c").read_bytes() == files["b/c.bin"]
    link.millrace("link", "restore", link.shown)
    assert not any(link.is_stub(path) for path in ("one", "program", "private"))
    assert (link.shown / "private").stat().st_mode & 0o777 == 0o600
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 0
    link.millrace("link", "rm", "one")
    assert not any(link.shown.iterdir()), "rm ends the guardian"


def test_an_open_that_cannot_be_served_fails(guarded: Callable[..., Guarded]):
    link = guarded(size="8m")
    link.put("gone", b"x" * 1000)
    link.put("large", b"x" * (20 << 20))
    link.put("there", b"y" * 1000)
    link.put("replaced", b"old" * 1000)
    link.put("cut", b"0123456789" * 1000)
    link.run("--no-watch")
    within(120, lambda: link.has_stubs("gone", "large", "there", "replaced", "cut"))
    link.s3.client.delete_object(Bucket=link.bucket, Key="data/gone")
    assert link.read("gone") in DENIED
    assert link.read("large") in DENIED | {f"errno {errno.ENOSPC}"}
    assert link.has_stubs("gone", "large") and (link.directory / "large").stat().st_blocks == 0
    assert "large" in [each["path"] for each in link.shown_status()["latest_problems"]]
    link.put("replaced", b"the new one")
    assert link.read("replaced") in {digest(b"the new one")} | DENIED
    within(60, lambda: link.read("replaced") == digest(b"the new one"))
    os.truncate(link.shown / "cut", 15)
    assert link.read("cut") == digest(b"012345678901234")
    assert link.read("there") == digest(b"y" * 1000)


def behind_a_proxy(link: Guarded) -> SilentProxy:
    address = urllib.parse.urlsplit(link.s3.endpoint)
    proxy = SilentProxy((address.hostname, address.port))
    link.millrace.env = link.millrace.env | {"AWS_ENDPOINT_URL": proxy.endpoint}
    return proxy


def test_programs_wait_for_the_next_link_run(guarded: Callable[..., Guarded]):
    link = guarded()
    proxy = behind_a_proxy(link)
    link.put("a", b"a" * 5000)
    link.put("b", b"b" * 5000)
    first = link.run()
    within(120, lambda: link.has_stubs("a", "b"))
    proxy.silent = True
    readers = [link.start_reading("a") for _ in range(3)]
    within(60, lambda: link.waiting() == 3)
    assert kill(first)
    time.sleep(0.2)
    assert all(reader.poll() is None for reader in readers), "they wait"
    proxy.silent = False
    second = link.run()
    assert [reader.communicate(timeout=120)[0].strip() for reader in readers] == [digest(b"a" * 5000)] * 3
    assert "stop it first" in link.millrace.fails("link", "guard", "one", "--end")
    # A clean end says at once that nobody brings content.
    proxy.silent = True
    reader = link.start_reading("b")
    within(60, lambda: link.waiting() == 1)
    second.send_signal(signal.SIGTERM)
    assert reader.communicate(timeout=120)[0].strip() in DENIED
    second.communicate(timeout=120)
    assert link.read("b") in DENIED and link.read("a") == digest(b"a" * 5000)
    # The visible path goes with the guardian, but not from under a program.
    held = os.open(link.shown, os.O_RDONLY)
    assert "a program uses" in link.millrace.fails("link", "guard", "one", "--end")
    os.close(held)
    link.millrace("link", "guard", "one", "--end")
    assert not any(link.shown.iterdir())
    proxy.silent = False
    link.run()
    within(60, lambda: (link.shown / "b").exists())
    assert link.read("b") == digest(b"b" * 5000)


def test_patience_ends(guarded: Callable[..., Guarded]):
    link = guarded()
    link.put("a", b"a" * 5000)
    assert "millrace link run" in link.millrace.fails("link", "release", link.directory)
    link.processes.append(link.millrace.start("link", "guard", "one", "--patience=1s"))
    guard = link.processes[-1]
    within(60, lambda: link.guardian())
    process = link.run()
    within(120, lambda: link.has_stubs("a"))
    assert kill(process)
    assert link.read("a") in DENIED, "after a second"
    link.run()
    within(60, lambda: link.read("a") == digest(b"a" * 5000))
    guard.send_signal(signal.SIGTERM)
    guard.communicate(timeout=60)
    assert guard.returncode == 0
    within(60, link.guardian)  # the link has started another one


def test_a_killed_guardian_lets_nobody_read_zeros(guarded: Callable[..., Guarded]):
    link = guarded()
    proxy = behind_a_proxy(link)
    link.put("a", b"a" * 5000)
    link.run()
    within(120, lambda: link.has_stubs("a"))
    proxy.silent = True
    reader = link.start_reading("a")
    within(60, lambda: link.waiting() == 1)
    before = link.guardian()
    os.kill(before, signal.SIGKILL)
    assert reader.communicate(timeout=120)[0].strip() in DENIED
    proxy.silent = False
    within(60, lambda: link.guardian() not in (None, before))
    within(60, lambda: link.read("a") == digest(b"a" * 5000))


def threads_in(process: int, function: str) -> int:
    """How many of its threads sleep in a function of the kernel."""
    names = []
    for each in Path(f"/proc/{process}/task").glob("*/stack"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            names.append(each.read_text())
    return sum(function in name for name in names)


@contextlib.contextmanager
def inode_locked(link: Guarded, path: str) -> Iterator[None]:
    """As a release holds it: who would fill the file waits."""
    inode = (link.directory / path).stat().st_ino
    with (link.disk.parent / "links/one/inodes.lock").open("a+b") as file:
        # struct flock: an exclusive lock of one byte, from the start of the file, of this open file
        fcntl.fcntl(file, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, inode & ~1, 1, 0))
        yield


def test_a_fill_that_opens_its_file_while_the_guardian_dies(guarded: Callable[..., Guarded]):
    """The next guardian reads the open of the process that fills before it knows that process."""
    link = guarded()
    link.put("a", b"a" * 5000)
    link.put("b", b"b" * 5000)
    process = link.run("--no-watch")
    within(120, lambda: link.has_stubs("a", "b"))
    assert link.read("b") == digest(b"b" * 5000)  # makes the file of locks
    guardian = link.guardian()
    with inode_locked(link, "a"):
        reader = link.start_reading("a")
        within(60, lambda: threads_in(process.pid, "fcntl_setlk") == 1)
        os.kill(guardian, signal.SIGSTOP)
    within(60, lambda: threads_in(process.pid, "fanotify") == 1)
    os.kill(guardian, signal.SIGKILL)
    assert reader.communicate(timeout=120)[0].strip() in DENIED, "it was read by the dead one"
    within(60, lambda: link.guardian() not in (None, guardian))
    assert link.read("a") == digest(b"a" * 5000)


def test_readers_and_releases_and_kills_at_once(guarded: Callable[..., Guarded]):
    """What is read is the content or an error, whatever is released or killed meanwhile."""
    seed = int(os.environ.get("MILLRACE_TEST_SEED", random.randrange(1 << 30)))
    print("seed", seed)
    rng = random.Random(seed)
    rounds = 40 if os.environ.get("MILLRACE_TEST_LONG") else 8
    link = guarded()
    # Many small ones: each is released in a moment that an open may meet.
    sizes = [1, 5000, 70_000] * 100 + [6 << 20] * 2
    contents = {f"f{i}": rng.randbytes(size - 1) + b"x" for i, size in enumerate(sizes)}
    link.put_all(contents)
    right = {path: digest(content) for path, content in contents.items()}
    process = link.run()
    within(120, lambda: link.has_stubs(*contents))
    ends = threading.Event()
    wrong: list[str] = []
    reads = {"right": 0, "denied": 0}

    def keep_reading(number: int) -> None:
        choice = random.Random(seed + number)
        while not ends.is_set():
            path = choice.choice(list(contents))
            try:
                content = (link.shown / path).read_bytes()
            except OSError as error:
                reads["denied"] += 1
                if error.errno not in (errno.EIO, errno.EPERM, errno.ENOENT):
                    wrong.append(f"{path}: {error}")
                continue
            if digest(content) == right[path]:
                reads["right"] += 1
            else:
                wrong.append(f"{path}: {content[:20]!r}")

    readers = [threading.Thread(target=keep_reading, args=(i,)) for i in range(4)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(rounds):
            link.millrace.start("link", "release", link.directory).communicate(timeout=120)
            time.sleep(rng.random() * 0.2)
            if rng.random() < 0.5:
                if guardian := link.guardian():
                    os.kill(guardian, signal.SIGKILL)
                within(120, link.guardian)
            if rng.random() < 0.5:
                kill(process)
                process = link.run()
            assert not wrong, wrong
    finally:
        ends.set()
        for reader in readers:
            reader.join()
    assert not wrong, wrong
    print(reads)
    within(120, lambda: link.read_all(*contents) == list(right.values()))
    within(120, lambda: not link.shown_status()["conflicts"] and link.shown_status()["released"] == 0)
    assert link.objects() == contents


def test_the_holes(guarded: Callable[..., Guarded]):
    """What docs/link.md says does not hold: when both processes are killed, and of descriptors from before the mark."""
    link = guarded()
    proxy = behind_a_proxy(link)
    link.put("a", b"a" * 5000)
    process = link.run()
    within(120, lambda: link.has_stubs("a"))
    # The guardian keeps the file system mounted, and so the mark.
    busy = subprocess.run(["umount", link.disk], capture_output=True, text=True)
    assert busy.returncode != 0 and "busy" in busy.stderr
    proxy.silent = True
    reader = link.start_reading("a")
    within(60, lambda: link.waiting() == 1)
    guardian = link.guardian()
    os.kill(process.pid, signal.SIGSTOP)  # else it would start another guardian
    os.kill(guardian, signal.SIGKILL)
    assert kill(process)
    assert reader.communicate(timeout=60)[0].strip() == digest(bytes(5000)), "zeros"
    # Root finds the stub where nobody else may look; as it is, programs of Millrace know it.
    proxy.silent = False
    with (link.directory / "a").open("rb") as before:
        link.run()
        within(60, lambda: link.guardian())
        assert before.read() == bytes(5000), "zeros: it was opened before the mark"
    assert link.read("a") == digest(b"a" * 5000)


# Waits in the calls by which a release makes a stub, so that opens fall between them.
SLOW_RELEASE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>
#define SLOWLY(name, parameters, ...)                                       \\
  int name parameters {                                                     \\
    static int(*real) parameters;                                           \\
    if (!real) real = (int(*) parameters)dlsym(RTLD_NEXT, #name);           \\
    usleep(300 * 1000);                                                     \\
    return real(__VA_ARGS__);                                               \\
  }
SLOWLY(fsetxattr, (int fd, const char *name, const void *value, size_t size, int flags), fd, name, value, size, flags)
SLOWLY(fallocate, (int fd, int mode, off_t offset, off_t length), fd, mode, offset, length)
SLOWLY(fallocate64, (int fd, int mode, off_t offset, off_t length), fd, mode, offset, length)
"""


def test_opens_between_the_steps_of_a_release(guarded: Callable[..., Guarded]):
    link = guarded()
    link.put("a", b"a" * 5000)
    link.run()
    within(120, lambda: link.has_stubs("a"))
    assert link.read("a") == digest(b"a" * 5000)
    link.millrace.env = link.millrace.env | preloaded(SLOW_RELEASE, link.shown.parent)
    opened = 0
    released = False
    end = time.monotonic() + 120
    while not released:
        assert time.monotonic() < end, "no release fell between two reads"
        release = link.millrace.start("link", "release", link.directory, "--json")
        while release.poll() is None:
            assert (link.shown / "a").read_bytes() == b"a" * 5000
            opened += 1
            time.sleep(0.02)
        lines = map(json.loads, release.communicate()[0].splitlines())
        released = any(each["type"] == "link_release" and each["files"] == 1 for each in lines)
    assert opened > 0 and (link.shown / "a").read_bytes() == b"a" * 5000


def test_what_cannot_be_guarded_is_refused(guarded: Callable[..., Guarded], s3: S3, tmp_path: Path):
    link = guarded()
    fails = link.millrace.fails
    url = f"s3://{s3.bucket()}/x"
    open_to_all = link.disk / "open"
    hidden = link.disk / "hidden" / "other"
    for folder in (open_to_all, hidden, tmp_path / "mine", tmp_path / "shown"):
        folder.mkdir()
    shown = f"--show-at={tmp_path / 'shown'}"
    link.disk.chmod(0o755)
    assert "mode 0700" in fails("link", "add", open_to_all, url, "--lazy", shown)
    assert "file system of its own" in fails("link", "add", tmp_path / "mine", url, "--lazy", shown)
    assert "on one node" in fails("link", "add", hidden, url, "--lazy", shown, "--take-over=30s")
    assert "no empty directory" in fails("link", "add", hidden, url, "--lazy", f"--show-at={link.disk}")
    link.millrace("link", "add", hidden, url, "--name=two")
    assert "without --show-at" in fails("link", "guard", "two")
