# SPDX-License-Identifier: Apache-2.0
"""Bytes that move and data that survive when something goes wrong: millrace beside s5cmd, rclone and awscli on one
real S3 server of this
machine (tests/services/s3_server): one byte of a large file changes; a client is killed halfway and run again; the
server dies, halts, is overloaded, or the connection fails every tenth request.

    python benchmarks/storage/trouble.py [--only change,kill,faults] [--clients millrace,s5cmd,rclone,awscli] [--runs 1]
                                         [--large-mib 2048] [--kill-mib 4096] [--fault-mib 64]

Every client runs its sync verb with its defaults, each job on a new server. Bytes are counted outside of the client,
by a proxy that speaks HTTP; where the server itself fails, there is no proxy. Content that arrived is compared byte
by byte, uploads by botocore, which the development environment has. Seconds are those of one run beside proxy and
server.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import botocore.session
from botocore.client import BaseClient, Config
from clients import PIECE, ROOT, client_environment, environment, make_files, s5cmd

MIB = 1 << 20
SERVER = ROOT / "tests/services/s3_server"
PATIENCE_S, STOPPED_S = 600, 10
FILES = 16
EVERY = 10
ON_THE_LINE = ("503", "cut", "reset")
FAULTS = ("none", "killed", "stopped", *ON_THE_LINE, "busy")
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
CHUNKED = -1
UP, DOWN, REQUESTS = range(3)
COLUMNS = {
    "change": "change|client|MiB up|MiB down|requests|s|status|compared",
    "kill": "direction|client|MiB until killed|then there|MiB of the second run|MiB again|status|compared|beside it",
    "faults": "fault|client|times|s|status|compared|beside them",
}


class End:
    """One end of a connection: what is read from it is counted."""

    def __init__(self, connection: socket.socket, count: Callable[[int], object]) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection, self.file, self.count = connection, connection.makefile("rb", PIECE // 16), count
        self.send = connection.sendall

    def counted(self, piece: bytes) -> bytes:
        if not piece:
            raise ConnectionError("closed")
        self.count(len(piece))
        return piece

    def head(self) -> bytes:
        """Up to an empty line."""
        lines = [b""]
        while lines[-1] != b"\r\n":
            lines.append(self.counted(self.file.readline()))
        return b"".join(lines)

    def pass_on(self, send: Callable[[bytes], object], length: int) -> None:
        while length == CHUNKED:
            send(line := self.counted(self.file.readline()))
            if (size := int(line.split(b";")[0], 16)) == 0:
                send(self.head())
                return
            self.pass_on(send, size + len(b"\r\n"))
        while length:
            send(piece := self.counted(self.file.read1(min(length, PIECE // 4))))
            length -= len(piece)

    def close(self, reset: bool) -> None:
        self.file.close()
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


def body_length(head: bytes) -> int:
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
    return CHUNKED if b"chunked" in fields.get(b"transfer-encoding", b"") else int(fields.get(b"content-length", b"0"))


def is_preliminary(answer: bytes) -> bool:
    return answer[9:10] == b"1"


class Line:
    """A proxy in a process of its own. With a fault, of every ten requests one is answered 503; or cut in the middle of its
    body or else of the answer's; or carried out, and the connection reset in the middle of the answer."""

    def __init__(self, endpoint: str, fault: str = "") -> None:
        self.fault, self.server = fault, (urlsplit(endpoint).hostname, urlsplit(endpoint).port)
        self.counts, self.lock = multiprocessing.RawArray("q", 3), threading.Lock()
        self.door = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.endpoint = f"http://127.0.0.1:{self.door.getsockname()[1]}"
        self.process = multiprocessing.get_context("fork").Process(target=self.serve, daemon=True)

    def __enter__(self) -> Line:
        self.process.start()
        self.door.close()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()

    def add(self, what: int, amount: int) -> int:
        with self.lock:
            self.counts[what] += amount
            return self.counts[what]

    def serve(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            threading.Thread(target=self.talk, args=(self.door.accept()[0],), daemon=True).start()

    def talk(self, connection: socket.socket) -> None:
        ends, reset = [End(connection, lambda amount: self.add(UP, amount))], False
        with contextlib.suppress(OSError):  # where one end closes, so does the other
            ends.append(End(socket.create_connection(self.server), lambda amount: self.add(DOWN, amount)))
            while not reset:
                reset = self.exchange(*ends)
        for end in ends:
            end.close(reset)

    def exchange(self, client: End, server: End) -> bool:
        """One request and its answer; True where a reset is to end the connection."""
        head = client.head()
        length, waits = body_length(head), b"\r\nexpect: 100-continue" in head.lower()
        fault = self.fault if self.add(REQUESTS, 1) % EVERY == 0 else ""
        if fault == "503":
            client.send(b"HTTP/1.1 100 Continue\r\n\r\n" if waits else b"")
            client.pass_on(lambda _: None, length)
            body = b"" if head.startswith(b"HEAD ") else SLOW_DOWN
            client.send(b"HTTP/1.1 503 Slow Down\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            return False
        server.send(head)
        if waits:
            client.send(answer := server.head())
            if not is_preliminary(answer):
                server.pass_on(client.send, body_length(answer))
                raise ConnectionError("refused, and whether the body comes nobody knows")
        if fault == "cut" and length > 0:
            client.pass_on(server.send, length // 2)
            raise ConnectionError(fault)
        client.pass_on(server.send, length)
        while is_preliminary(answer := server.head()):
            client.send(answer)
        bare = head.startswith(b"HEAD ") or answer[9:12] in (b"204", b"304")
        length = 0 if bare else body_length(answer)
        if fault and length != 0:
            client.send(answer)
            server.pass_on(client.send, max(length // 2, 0))
        if fault == "cut":
            raise ConnectionError(fault)
        if fault == "reset":
            return True
        client.send(answer)
        server.pass_on(client.send, length)
        return False


@dataclass
class Cloud:
    endpoint: str
    env: dict[str, str]
    folder: Path
    s3: BaseClient

    def gateway(self, sign: signal.Signals) -> None:
        os.kill(int((self.folder / "run/gateway.pid").read_text()), sign)


def start(folder: Path, *options: str) -> str:
    return subprocess.run([SERVER, "start", *options, folder], check=True, stdout=subprocess.PIPE, text=True).stdout


@contextlib.contextmanager
def cloud(folder: Path, *options: str) -> Iterator[Cloud]:
    """A new server with a bucket."""
    try:
        facts = dict(line.split("=", 1) for line in start(folder, "--size-gib", "64", *options).splitlines())
        env, endpoint = client_environment(facts, folder), facts["S3_ENDPOINT"]
        session = botocore.session.Session(session_vars={"config_file": (None, None, env["AWS_CONFIG_FILE"], None)})
        session.set_credentials(facts["AWS_ACCESS_KEY_ID"], facts["AWS_SECRET_ACCESS_KEY"])
        again = Config(retries={"max_attempts": 10})
        s3 = session.create_client("s3", region_name=facts["AWS_REGION"], endpoint_url=endpoint, config=again)
        s3.create_bucket(Bucket="bench")
        yield Cloud(endpoint, env, folder, s3)
    finally:
        subprocess.run([SERVER, "destroy", folder])


Strike = Callable[[subprocess.Popen], bool]  # whether it happened before the child's end


def once(due: Callable[[], bool], act: Callable[[subprocess.Popen], None]) -> Strike:
    def watch(child: subprocess.Popen) -> bool:
        while child.poll() is None:
            if due():
                act(child)
                return True
            time.sleep(0.002)
        return False

    return watch


@dataclass
class Done:
    status: str
    seconds: str
    struck: bool


def run(line: list, env: dict[str, str], strike: Strike) -> Done:
    begin, struck = time.perf_counter(), []
    with tempfile.TemporaryFile() as errors:
        # A session of its own: a peer may be a Python script that starts the program.
        child = subprocess.Popen(line, env=env, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True)
        watcher = threading.Thread(target=lambda: struck.append(strike(child)))
        watcher.start()
        try:
            status = str(child.wait(PATIENCE_S))
        except subprocess.TimeoutExpired:
            status = f"none in {PATIENCE_S} s"
        finally:
            seconds = time.perf_counter() - begin
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            watcher.join()
        errors.seek(0)
        if status not in ("0", "-9"):
            print(errors.read()[-1000:].decode(errors="replace"), file=sys.stderr)
    return Done(status, f"{seconds:.1f}", struck[0])


@dataclass
class Pair:
    """A folder, its copy in the bucket, and the copy that comes back."""

    client: str
    cloud: Cloud
    source: Path
    back: Path
    key: str = "data"

    def command(self, up: bool, endpoint: str) -> list:
        here, there = f"{self.source if up else self.back}/", f"s3://bench/{self.key}/"
        if self.client == "millrace":
            words = [Path(os.environ.get("MILLRACE_BIN", ROOT / ".venv/bin/millrace")), "sync", "--quiet"]
        elif self.client == "rclone":
            words = [environment("rclone") / "rclone", "sync"]
            there = f":s3,provider=Ceph,env_auth=true,endpoint='{endpoint}':bench/{self.key}"
        elif self.client == "s5cmd":
            words, there = [s5cmd(), "sync"], there if up else f"{there}*"
        else:
            programs = environment("awscli")
            words = [programs / "python", programs / "aws", "s3", "sync", "--only-show-errors"]
        return [*words, here, there] if up else [*words, there, here]

    def sync(self, up: bool, line: Line | None = None, strike: Strike = lambda _: False) -> Done:
        endpoint = line.endpoint if line else self.cloud.endpoint
        env = self.cloud.env | {"AWS_ENDPOINT_URL": endpoint, "S3_ENDPOINT_URL": endpoint}
        return run(self.command(up, endpoint), env, strike)

    def put_by_another(self) -> None:
        for file in self.source.iterdir():
            with file.open("rb") as content:
                self.cloud.s3.put_object(Bucket="bench", Key=f"{self.key}/{file.name}", Body=content)

    def compare(self, up: bool) -> str:
        counts = Counter(self.compare_one(up, file) for file in self.source.iterdir())
        return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))

    def compare_one(self, up: bool, file: Path) -> str:
        try:
            if not up:
                with (self.back / file.name).open("rb") as there:
                    return same(file, iter(lambda: there.read(PIECE), b""))
            there = self.cloud.s3.get_object(Bucket="bench", Key=f"{self.key}/{file.name}")["Body"]
            return same(file, there.iter_chunks(PIECE))
        except (FileNotFoundError, self.cloud.s3.exceptions.NoSuchKey):
            return "missing"

    def beside(self, up: bool) -> str:
        """Entries that are none of the files."""
        names, s3 = {file.name for file in self.source.iterdir()}, self.cloud.s3
        if not up:
            files = [path for path in self.back.rglob("*") if path.is_file() and path.name not in names]
            return describe(len(files), "file", [path.stat().st_blocks * 512 for path in files]) or "nothing"
        uploads = s3.list_multipart_uploads(Bucket="bench").get("Uploads", [])
        ids = [{"Bucket": "bench", "Key": upload["Key"], "UploadId": upload["UploadId"]} for upload in uploads]
        parts = [part["Size"] for one in ids for part in s3.list_parts(**one).get("Parts", [])]
        found = s3.list_objects_v2(Bucket="bench", Prefix=f"{self.key}/").get("Contents", [])
        others = [each["Size"] for each in found if each["Key"].removeprefix(f"{self.key}/") not in names]
        texts = [describe(len(ids), "open upload", parts), describe(len(others), "object", others)]
        return "; ".join(filter(None, texts)) or "nothing"


def same(file: Path, pieces: Iterable[bytes]) -> str:
    with file.open("rb") as content:
        equal = all(content.read(len(piece)) == piece for piece in pieces) and not content.read(1)
    return "right" if equal else "wrong"


def describe(count: int, what: str, sizes: list[int]) -> str:
    return f"{count} {what}{'s' * (count > 1)}, {sum(sizes) / MIB:.1f} MiB" if count else ""


def row(*cells: object) -> None:
    texts = [f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in cells]
    print(f"| {' | '.join(texts)} |", flush=True)


def flip(file: Path, keep_time: bool) -> None:
    """Changes one byte in the middle, at a later second than the last change."""
    time.sleep(1.1)
    before = file.stat()
    with file.open("r+b") as content:
        content.seek(before.st_size // 2)
        byte = content.read(1)[0]
        content.seek(before.st_size // 2)
        content.write(bytes([(byte + 1) % 256]))  # never what it was before
    if keep_time:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def change(pair: Pair, size: int) -> None:
    def measured(name: str, up: bool) -> None:
        with Line(pair.cloud.endpoint) as line:
            done, counts = pair.sync(up, line), list(line.counts)
        moved = counts[UP] / MIB, counts[DOWN] / MIB, counts[REQUESTS]
        row(name, pair.client, *moved, done.seconds, done.status, pair.compare(up))

    (file,) = pair.source.iterdir()
    for up in (True, False):
        if (done := pair.sync(up)).status != "0":
            raise SystemExit(f"{pair.client}: status {done.status} where nothing is wrong")
    flip(file, keep_time=False)
    measured("up, new time", True)
    measured("down, its own upload", False)
    flip(file, keep_time=True)
    measured("up, old time", True)
    flip(file, keep_time=False)
    pair.put_by_another()
    measured("down, another's upload", False)


def kill(pair: Pair, size: int) -> None:
    def end(child: subprocess.Popen) -> None:
        os.killpg(child.pid, signal.SIGKILL)
        time.sleep(1)  # what was sent arrives

    for up, way in ((True, UP), (False, DOWN)):
        with Line(pair.cloud.endpoint) as line:
            due = size * 0.52  # where no part ends
            first = pair.sync(up, line, once(lambda line=line, way=way, due=due: line.counts[way] > due, end))
            before = line.counts[way] / MIB
        there = f"{pair.compare(up)}; {pair.beside(up)}" if first.struck else "not killed"
        with Line(pair.cloud.endpoint) as line:
            second = pair.sync(up, line)
            after = line.counts[way] / MIB
        moved = before, there, after, before + after - size / MIB
        row("up" if up else "down", pair.client, *moved, second.status, pair.compare(up), pair.beside(up))


def fail(pair: Pair, fault: str, size: int) -> None:
    for up in (True, False):
        pair.key = "up" if up else "down"
        if not up:
            pair.put_by_another()
        if fault in ON_THE_LINE:
            with Line(pair.cloud.endpoint, fault) as line:
                done, times = pair.sync(up, line), line.counts[REQUESTS] // EVERY
        else:
            done = pair.sync(up, strike=strike(pair.cloud, fault, size))
            times = int(done.struck)
        result = done.seconds, done.status, pair.compare(up), pair.beside(up)
        row(f"{fault}, {'up' if up else 'down'}", pair.client, "" if fault == "busy" else times, *result)


def strike(one: Cloud, fault: str, size: int) -> Strike:
    """After a quarter or half of the content: up, it passes loopback twice, to the gateway and to its store."""
    counter = Path("/sys/class/net/lo/statistics/rx_bytes")
    due = int(counter.read_text()) + size // 2

    def act(_: subprocess.Popen) -> None:
        one.gateway(signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
        if fault == "killed":
            start(one.folder)
        else:
            time.sleep(STOPPED_S)
            one.gateway(signal.SIGCONT)

    return once(lambda: fault in ("killed", "stopped") and int(counter.read_text()) > due, act)


def measure(name: str, client: str, work: Path, size: int) -> None:
    for fault in FAULTS if name == "faults" else [""]:
        with cloud(work / "server", *(["--max-requests", "3"] if fault == "busy" else [])) as one:
            pair = Pair(client, one, work / name, work / "back")
            if fault:
                fail(pair, fault, size)
            else:
                {"change": change, "kill": kill}[name](pair, size)
        shutil.rmtree(work / "back", ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(COLUMNS))
    parser.add_argument("--clients", default="millrace,s5cmd,rclone,awscli")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--large-mib", type=int, default=2048)
    parser.add_argument("--kill-mib", type=int, default=4096)
    parser.add_argument("--fault-mib", type=int, default=64, help=f"of each of {FILES} files")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the servers go then, too
    sizes = {"change": (1, args.large_mib), "kill": (1, args.kill_mib), "faults": (FILES, args.fault_mib)}
    for name in args.only.split(","):
        print(f"\n| {COLUMNS[name].replace('|', ' | ')} |\n|{'---|' * (COLUMNS[name].count('|') + 1)}", flush=True)
        count, size = sizes[name][0], sizes[name][1] * MIB
        with tempfile.TemporaryDirectory(prefix="millrace-bench-") as temporary:
            work = Path(temporary)
            make_files(work / name, count, size)
            for _ in range(args.runs):
                for client in args.clients.split(","):
                    measure(name, client, work, count * size)


if __name__ == "__main__":
    main()
