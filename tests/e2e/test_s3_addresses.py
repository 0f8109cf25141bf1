# SPDX-License-Identifier: Apache-2.0
"""A service whose name has many addresses, as S3's has: connections spread over them, and one that is dead costs nothing."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from conftest import Millrace, preloaded
from test_transfer import make

# The name "many.test" has the addresses that ADDRESSES lists, each of them this machine.
NAMES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
typedef int Look(const char*, const char*, const struct addrinfo*, struct addrinfo**);
int getaddrinfo(const char* node, const char* service, const struct addrinfo* hints, struct addrinfo** out) {
  Look* real = (Look*)dlsym(RTLD_NEXT, "getaddrinfo");
  if (node == NULL || strcmp(node, "many.test") != 0) return real(node, service, hints, out);
  char* const all = strdup(getenv("ADDRESSES"));
  char* rest = all;
  *out = NULL;
  for (char* each; (each = strsep(&rest, ",")) != NULL;) {
    struct addrinfo only_v4 = *hints;
    only_v4.ai_family = AF_INET;
    if (real(each, service, &only_v4, out) != 0) return EAI_NONAME;
    while (*out != NULL) out = &(*out)->ai_next;
  }
  free(all);
  return 0;
}
"""


connections: Counter[str] = Counter()  # by the address that they were made to


class Server(ThreadingHTTPServer):
    request_queue_size = 512


class Bucket(BaseHTTPRequestHandler):
    """Takes every object."""

    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        connections[self.connection.getsockname()[0]] += 1

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        threading.Event().wait(0.02)  # so that many are under way
        self.answer(200, ETag=f'"{hashlib.md5(body).hexdigest()}"')

    def do_GET(self) -> None:
        self.answer(200, b'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>')

    def do_HEAD(self) -> None:
        self.answer(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port(millrace: Millrace, tmp_path: Path) -> Iterator[int]:
    server = Server(("0.0.0.0", 0), Bucket)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    millrace.env = {k: v for k, v in millrace.env.items() if not k.startswith("AWS_")} | {
        "AWS_ENDPOINT_URL": f"http://many.test:{server.server_address[1]}",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
        **preloaded(NAMES, tmp_path),
    }
    make(tmp_path / "src", {f"{i:03}": b"%d" % i for i in range(400)})
    connections.clear()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def test_connections_spread_over_the_addresses(millrace: Millrace, port: int) -> None:
    addresses = [f"127.0.0.{i}" for i in range(2, 6)]
    millrace("sync", "src", "s3://bucket/p", "--no-records", env={"ADDRESSES": ",".join(addresses)})
    assert sum(connections.values()) >= 16
    assert len(connections) >= 3 and set(connections) <= set(addresses), connections
    assert max(connections.values()) < 0.7 * sum(connections.values()), connections


def test_a_dead_address_is_passed_over(millrace: Millrace, port: int) -> None:
    millrace("sync", "src", "s3://bucket/p", "--no-records", env={"ADDRESSES": "240.0.0.1,127.0.0.2,127.0.0.3"})
    assert set(connections) == {"127.0.0.2", "127.0.0.3"}
