# SPDX-License-Identifier: Apache-2.0
"""A minimal S3 server: it keeps objects in memory, and hashes, checks and writes none. It shows a client's own cost.

    python benchmarks/storage/null_server.py [--certificate PEM]      prints its endpoint; with a key and certificate: HTTPS
                                             [--first-byte-ms 30] [--connection-mib 80]

The last two make it answer late, and with this many MiB a second on each connection, as S3 does. It knows objects,
ranges, multipart uploads, listings in pages and deletion in batches, but no signatures and owners.
"""

from __future__ import annotations

import argparse
import itertools
import socket
import ssl
import threading
import time
from bisect import bisect_left
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.etree import ElementTree

LIST_PAGE = 1000
RECEIVE_BYTES = 256 << 10
DATE = "Sat, 21 Nov 2026 12:00:00 GMT"


@dataclass
class Object:
    parts: list[memoryview]
    etag: str

    @property
    def size(self) -> int:
        return sum(len(part) for part in self.parts)

    def pieces(self, begin: int, end: int):
        for part in self.parts:
            if begin < len(part) and end > 0:
                yield part[max(begin, 0) : min(end, len(part))]
            begin, end = begin - len(part), end - len(part)


@dataclass
class Request:
    method: str
    key: str  # "" of a bucket
    query: dict[str, str]
    headers: dict[str, str]
    body: memoryview


@dataclass
class Answer:
    status: str = "200 OK"
    headers: str = ""
    body: list[memoryview] | None = None
    length: int = 0  # of the body; of HEAD: what it would be


def xml(text: str) -> Answer:
    body = text.encode()
    return Answer(body=[memoryview(body)], length=len(body))


MISSING = "404 Not Found"


class Store:
    """All buckets are one."""

    def __init__(self):
        self.lock = threading.Lock()
        self.objects: dict[str, Object] = {}
        self.uploads: dict[str, dict[int, memoryview]] = {}
        self.numbers = itertools.count(1)

    def number(self) -> str:
        return f"{next(self.numbers):032x}"

    def answer(self, request: Request) -> Answer:
        with self.lock:
            if "uploadId" in request.query or "uploads" in request.query:
                return self.upload(request)
            if not request.key:
                return self.bucket(request)
            return {"PUT": self.put, "GET": self.get, "HEAD": self.get, "DELETE": self.delete}[request.method](request)

    def put(self, request: Request) -> Answer:
        stored = self.objects[request.key] = Object([request.body], self.number())
        return Answer(headers=f'ETag: "{stored.etag}"\r\n')

    def get(self, request: Request) -> Answer:
        stored = self.objects.get(request.key)
        if stored is None:
            return Answer(MISSING)
        if request.headers.get("if-match", stored.etag).strip('"') != stored.etag:
            return Answer("412 Precondition Failed")
        headers = f'ETag: "{stored.etag}"\r\nLast-Modified: {DATE}\r\nAccept-Ranges: bytes\r\n'
        begin, end, status = 0, stored.size, "200 OK"
        if asked := request.headers.get("range"):
            first, last = asked.removeprefix("bytes=").split("-")
            begin, end = int(first), min(int(last) + 1 if last else end, end)
            status = "206 Partial Content"
            headers += f"Content-Range: bytes {begin}-{end - 1}/{stored.size}\r\n"
        body = None if request.method == "HEAD" else list(stored.pieces(begin, end))
        return Answer(status, headers, body, end - begin)

    def delete(self, request: Request) -> Answer:
        self.objects.pop(request.key, None)
        return Answer("204 No Content")

    def upload(self, request: Request) -> Answer:
        name = request.query.get("uploadId", "")
        if request.method == "PUT":
            self.uploads[name][int(request.query["partNumber"])] = request.body
            return Answer(headers=f'ETag: "{self.number()}"\r\n')
        if request.method == "DELETE":
            self.uploads.pop(name, None)
            return Answer("204 No Content")
        if request.method == "GET":  # no unfinished uploads are left
            return xml("<ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>")
        if not name:
            name = self.number()
            self.uploads[name] = {}
            return xml(f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>")
        parts = self.uploads.pop(name)
        stored = self.objects[request.key] = Object([parts[n] for n in sorted(parts)], self.number())
        return xml(
            f"<CompleteMultipartUploadResult><ETag>&quot;{stored.etag}&quot;</ETag></CompleteMultipartUploadResult>"
        )

    def bucket(self, request: Request) -> Answer:
        if request.method == "POST":  # ?delete
            for key in ElementTree.fromstring(bytes(request.body)).iter():
                if key.tag.endswith("Key"):
                    self.objects.pop(key.text or "", None)
            return xml("<DeleteResult></DeleteResult>")
        if request.method != "GET":
            return Answer()
        prefix = request.query.get("prefix", "")
        keys = sorted(self.objects)
        begin = bisect_left(keys, max(prefix, request.query.get("continuation-token", "")))
        page = list(itertools.islice(itertools.takewhile(lambda k: k.startswith(prefix), keys[begin:]), LIST_PAGE + 1))
        next_page = (
            f"<NextContinuationToken>{quote(page[LIST_PAGE])}</NextContinuationToken>" if page[LIST_PAGE:] else ""
        )
        contents = "".join(
            f"<Contents><Key>{quote(key)}</Key><Size>{self.objects[key].size}</Size>"
            f"<ETag>&quot;{self.objects[key].etag}&quot;</ETag>"
            "<LastModified>2026-11-21T12:00:00.000Z</LastModified></Contents>"
            for key in page[:LIST_PAGE]
        )
        return xml(
            "<ListBucketResult><EncodingType>url</EncodingType>"
            f"<IsTruncated>{str(bool(next_page)).lower()}</IsTruncated>{next_page}{contents}</ListBucketResult>"
        )


@dataclass
class Line:
    """The properties of a connection."""

    first_byte_seconds: float = 0
    bytes_per_second: float = 0  # of bodies; 0: as fast as it goes

    def send(self, connection: socket.socket, body: memoryview) -> None:
        start = time.perf_counter()
        step = RECEIVE_BYTES if self.bytes_per_second else max(1, len(body))
        for begin in range(0, len(body), step):
            connection.sendall(body[begin : begin + step])
            self.wait(start, begin + step)

    def receive(self, connection: socket.socket, body: memoryview) -> bool:
        """False when the client went away."""
        start, filled = time.perf_counter(), 0
        step = RECEIVE_BYTES if self.bytes_per_second else len(body)
        while filled < len(body):
            count = connection.recv_into(body[filled : filled + step])
            if count == 0:
                return False
            filled += count
            self.wait(start, filled)
        return True

    def wait(self, start: float, moved: int) -> None:
        if self.bytes_per_second:
            time.sleep(max(0, start + moved / self.bytes_per_second - time.perf_counter()))


class Connection:
    def __init__(self, connection: socket.socket, line: Line):
        self.socket = connection
        self.line = line
        self.buffer = bytearray(RECEIVE_BYTES)
        self.rest = b""  # received bytes behind the request before

    def receive(self) -> Request | None:
        head = self.rest
        while (end := head.find(b"\r\n\r\n")) < 0:
            count = self.socket.recv_into(self.buffer)
            if count == 0:
                return None
            head += self.buffer[:count]
        first, *lines = head[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("expect"):
            self.socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        length = int(headers.get("content-length", 0))
        body = memoryview(bytearray(length))
        begun = head[end + 4 : end + 4 + length]
        body[: len(begun)] = begun
        self.rest = head[end + 4 + length :]
        if not self.line.receive(self.socket, body[len(begun) :]):
            return None
        method, target, _ = first.split(" ")
        url = urlsplit(target)
        key = unquote(url.path).lstrip("/").partition("/")[2]
        return Request(method, key, dict(parse_qsl(url.query, keep_blank_values=True)), headers, body)

    def send(self, answer: Answer) -> None:
        head = (
            f"HTTP/1.1 {answer.status}\r\nDate: {DATE}\r\nx-amz-request-id: 0\r\n{answer.headers}"
            f"Content-Length: {answer.length}\r\n\r\n"
        ).encode()
        body = answer.body or []
        if body and len(body[0]) <= RECEIVE_BYTES:  # one packet rather than two
            head, body = head + body[0], body[1:]
        time.sleep(self.line.first_byte_seconds)
        self.socket.sendall(head)
        for piece in body:
            self.line.send(self.socket, piece)


def serve(connection: socket.socket, store: Store, tls: ssl.SSLContext | None, line: Line) -> None:
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = Connection(tls.wrap_socket(connection, server_side=True) if tls else connection, line)
        while request := client.receive():
            client.send(store.answer(request))
    except OSError:
        pass  # the client went
    finally:
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--certificate", help="PEM with key and certificate")
    parser.add_argument("--first-byte-ms", type=float, default=0, help="wait so long before an answer")
    parser.add_argument("--connection-mib", type=float, default=0, help="MiB/s of a connection (default: any)")
    args = parser.parse_args()
    line = Line(args.first_byte_ms / 1000, args.connection_mib * (1 << 20))
    tls = None
    if args.certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(args.certificate)
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(f"http{'s' if tls else ''}://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    store = Store()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, store, tls, line), daemon=True).start()


if __name__ == "__main__":
    main()
