# SPDX-License-Identifier: Apache-2.0
"""Servers that are silent, slow, endless or liars: every verb ends soon, with an error that says why."""

import hashlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

TIMEOUT_S = 2
MOST_S = 12  # of a verb against a server that never answers, the program's start and a slow machine included

OK = b"HTTP/1.1 200 OK\r\n"


class Hostile:
    """Accepts connections and calls `behave(connection, head)` for each, once the head of a request has come."""

    def __init__(self, behave: Callable[[socket.socket, bytes], None]):
        self.behave = behave
        self.end_of_head = b"\r\n\r\n"
        self.asked = threading.Event()
        self.heads: list[bytes] = []
        self.ending = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.connections: list[socket.socket] = []
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        try:
            while not self.ending.is_set():
                head = b""
                while self.end_of_head not in head:
                    more = connection.recv(65536)
                    if not more:
                        return
                    head += more
                self.heads.append(head)
                self.asked.set()
                self.behave(connection, head)
        except OSError:
            pass

    def close(self) -> None:
        self.ending.set()
        self.listener.close()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def hostile(request, millrace):
    servers = []

    def start(behave) -> Hostile:
        servers.append(Hostile(behave))
        millrace.env = {k: v for k, v in millrace.env.items() if not k.startswith(("AWS_", "MILLRACE_"))}
        millrace.env |= {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_ENDPOINT_URL_S3": servers[-1].url,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def answer(connection: socket.socket, body: bytes, *headers: str, status: str = "200 OK") -> None:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


def listing(token: str, keys: list[str]) -> bytes:
    contents = "".join(f"<Contents><Key>{key}</Key><Size>1</Size><ETag>e</ETag></Contents>" for key in keys)
    return (
        f"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
        f"{contents}</ListBucketResult>"
    ).encode()


def repeat(piece: bytes, pause_s: float = 0, first: bytes = b"") -> Callable[[socket.socket, bytes], None]:
    def behave(connection: socket.socket, _head: bytes) -> None:
        connection.sendall(first)
        while True:
            connection.sendall(piece)
            time.sleep(pause_s)

    return behave


def silent(_connection: socket.socket, _head: bytes) -> None:
    time.sleep(3600)


def pages(keys: list[str]) -> Callable[[socket.socket, bytes], None]:
    count = iter(range(1, 1_000_000))
    return lambda connection, _head: answer(connection, listing(str(next(count)), keys))


ENDLESS = {
    "silence": (silent, "no byte moved"),
    "a byte a second": (repeat(b"x", 1, OK + b"Content-Length: 100\r\n\r\n"), "too slow"),
    "a header line a second": (repeat(b"X-More: y\r\n", 1, OK), "too slow"),
    "headers without end": (repeat(b"X-More: " + b"y" * 1000 + b"\r\n", 0, OK), "headers of more than"),
    "100 Continue without end": (repeat(b"HTTP/1.1 100 Continue\r\n\r\n"), "interim answers"),
    "a body without end": (repeat(b"x" * 65536, 0, OK + b"\r\n"), "a body of more than"),
    "503 for ever": (
        lambda c, _: answer(c, b"<Error><Code>SlowDown</Code></Error>", status="503 Slow Down"),
        "503 SlowDown",
    ),
    "Retry-After of an hour": (
        lambda c, _: answer(c, b"", "Retry-After: 3600", status="503 Slow Down"),
        "Retry-After: 3600",
    ),
    "empty pages without end": (pages([]), "does not advance"),
    "one page again and again": (pages(["a", "b"]), "does not advance"),
    "HTTP/2": (repeat(b"\0\0\x12\x04\0\0\0\0\0" + b"\0" * 18, 1), "HTTP/2 only"),
    "an alert of TLS": (repeat(b"\x15\x03\x01\0\x02\x02\x0a", 1), "https://"),
    "another language": (repeat(b"220 ftp.example ready\r\n", 1), "not HTTP/1.1"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_listing_ends_whatever_the_server_does(millrace, hostile, kind):
    behave, word = ENDLESS[kind]
    hostile(behave)
    begin = time.monotonic()
    ran = millrace("ls", "s3://bucket", "--recursive", "--timeout", TIMEOUT_S, status=1)
    assert word in ran.err and len(ran.err.splitlines()) == 1, ran
    assert time.monotonic() - begin < MOST_S


def test_a_server_without_tls_is_told_at_once(millrace, hostile):
    server = hostile(lambda c, _: (answer(c, b"", status="400 Bad Request"), c.close()))
    server.end_of_head = b""
    begin = time.monotonic()
    error = millrace.fails("ls", "s3://bucket", "--endpoint-url", server.url.replace("http", "https"))
    assert "speaks no TLS" in error and "http://" in error
    assert time.monotonic() - begin < MOST_S


@pytest.mark.parametrize(
    "verb",
    [
        ("cp", "s3://bucket/k", "there"),
        ("cp", "file", "s3://bucket/k"),
        ("cp", "large", "s3://bucket/k"),
        ("sync", "s3://bucket/tree", "there"),
        ("sync", "tree", "s3://bucket/tree"),
        ("ls", "s3://bucket"),
        ("ls", "s3://bucket", "--uploads"),
        ("rm", "s3://bucket/k"),
        ("cat", "s3://bucket/k"),
        ("verify", "tree", "s3://bucket/tree"),
        ("shards", "ls", "s3://bucket/shards"),
        ("ckpt", "ls", "s3://bucket/run"),
        ("prepare", "s3://bucket/raw", "--tokenizer", "s3://bucket/tokenizer.json", "--out", "out"),
        ("cat", "URL/file"),
    ],
    ids=" ".join,
)
def test_ctrl_c_ends_every_verb_while_a_server_is_silent(millrace, hostile, tmp_path, verb):
    server = hostile(silent)
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "large").write_bytes(bytes(20 << 20))
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a").write_bytes(b"a")
    process = millrace.start(*(word.replace("URL", server.url) for word in verb))
    try:
        assert server.asked.wait(30)
        time.sleep(0.2)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert time.monotonic() - begin < 1.5  # a second, and time for a busy machine
        assert process.returncode == 128 + signal.SIGINT, (out, err)
        assert not (tmp_path / "there").is_file()
    finally:
        process.kill()


def stored(etag: str) -> Callable[[socket.socket, bytes], None]:
    """An empty bucket that takes a PUT."""

    def behave(connection: socket.socket, head: bytes) -> None:
        start, _, rest = head.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in start.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        while len(rest) < length:
            rest += connection.recv(65536)
        if head.startswith(b"PUT"):
            answer(connection, b"", f'ETag: "{etag}"')
        elif head.startswith(b"HEAD"):
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        else:
            answer(connection, b"<ListBucketResult></ListBucketResult>")

    return behave


def test_an_etag_of_something_else_is_an_error(millrace, hostile, tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    server = hostile(stored(hashlib.md5(b"content").hexdigest()))
    millrace("cp", "file", "s3://bucket/k")
    assert any(b"content-md5: " in head.lower() for head in server.heads)
    hostile(stored(hashlib.md5(b"other").hexdigest()))
    error = millrace.fails("cp", "file", "s3://bucket/k")
    assert "stored something else" in error and "MILLRACE_S3_ETAG_IS_MD5=0" in error
    millrace("cp", "file", "s3://bucket/k", env={"MILLRACE_S3_ETAG_IS_MD5": "0"})


def test_log_debug_says_what_hangs(millrace, hostile):
    server = hostile(lambda c, _: answer(c, b"<Error><Code>AccessDenied</Code></Error>", status="403 Forbidden"))
    ran = millrace("ls", "s3://bucket/prefix", "--log", "debug", status=1)
    for word in (server.url, "region", "credentials: environment", "HEAD s3://bucket/prefix", "403", "try 1"):
        assert word in ran.err, word
    assert "secret" not in ran.err


def test_few_open_files_carry_many_uploads(millrace, hostile, tmp_path):
    hostile(stored("opaque"))
    tree = tmp_path / "tree"
    tree.mkdir()
    for i in range(2000):
        (tree / f"{i:05}").write_bytes(b"x")
    limited = subprocess.run(
        ["prlimit", "--nofile=256:256", millrace.binary, "cp", "tree", "s3://bucket/tree", "--recursive"],
        cwd=tmp_path,
        env=millrace.env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert limited.returncode == 0, limited.stderr


READ = """
import millrace as mr
with mr.open("s3://bucket/k") as file:
    print("open", flush=True)
    file.read()
"""
WRITE = """
from millrace.fsspec import MillraceFileSystem
with MillraceFileSystem().open("s3://bucket/k", "wb") as file:
    print("open", flush=True)
    file.write(bytes(1000))
"""


# Of checkpoints, what a Checkpointer asks when it is made and when it restores.
CHECKPOINTS = [
    f"from millrace import _core\n_core.{call}"
    for call in (
        'make_attempt("s3://bucket/run")',
        'list_steps("s3://bucket/run")',
        'list_step_numbers("s3://bucket/run")',
        'Checkpoint("s3://bucket/run", 1)',
    )
]


@pytest.mark.parametrize(
    ("program", "opens"), [(READ, False), (READ, True), (WRITE, True), *((program, False) for program in CHECKPOINTS)]
)
def test_ctrl_c_ends_a_file_of_python_while_a_server_is_silent(millrace, hostile, program, opens):
    """While it is opened, read or written, or checkpoints are looked for; Python sees KeyboardInterrupt."""

    def behave(connection: socket.socket, head: bytes) -> None:
        if not opens or not head.startswith(b"HEAD"):
            silent(connection, head)
        connection.sendall(OK + b'Content-Length: 5000000\r\nETag: "e"\r\n\r\n')

    server = hostile(behave)
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=millrace.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert server.asked.wait(30)
        if opens:
            assert process.stdout.readline() == "open\n"
        time.sleep(0.5)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert time.monotonic() - begin < 1.5
        assert "KeyboardInterrupt" in err, err
    finally:
        process.kill()


@pytest.mark.parametrize("silent_from", ["the first request", "the listing of uploads", "the upload"])
def test_a_large_copy_waits_for_a_silent_server_once(millrace, hostile, tmp_path, silent_from):
    """Each question that goes unanswered takes the timeout; a copy that went on to the next one took it twice."""

    def behave(connection: socket.socket, head: bytes) -> None:
        line = head.split(b"\r\n")[0]
        answered = silent_from != "the first request" and line.startswith(b"HEAD")
        answered |= silent_from == "the upload" and b"uploads=" in line and line.startswith(b"GET")
        if not answered:
            silent(connection, head)
        if line.startswith(b"HEAD"):
            answer(connection, b"", status="404 Not Found")
        else:
            answer(connection, b"<ListMultipartUploadsResult></ListMultipartUploadsResult>")

    server = hostile(behave)
    (tmp_path / "large").write_bytes(b"x" * (20 << 20))
    ran = millrace("cp", "large", "s3://bucket/k", "--timeout", 2, status=1)
    assert "no byte moved" in ran.err
    unanswered = [head.split(b"\r\n")[0] for head in server.heads]
    questions = {(line.split()[0], line.split()[1].split(b"=")[0]) for line in unanswered}
    # One that had an answer, or the last one: nothing is asked behind the question that had none.
    asked = {"the first request": 1, "the listing of uploads": 2, "the upload": 3}[silent_from]
    assert len(questions) == asked, questions
