# SPDX-License-Identifier: Apache-2.0
"""A sweep of a link with a million unchanged files: memory, time, CPU, requests.

    python benchmarks/link/million.py [--files 1000000]

The bucket is a server of this script that answers listings of as many keys and counts everything else. The directory is
real; the link's state is written as an earlier sweep would have left it, because no server here takes a million objects
in a bearable time. So what is measured is the sweep, and not how the state came about; the first thing that is checked
is that the sweep finds nothing to do.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sqlite3
import subprocess
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

ROOT = Path(__file__).resolve().parents[2]
MILLRACE = os.environ.get("MILLRACE_BIN") or str(ROOT / ".venv/bin/millrace")
PER_FOLDER = 1000
ETAG = hashlib.md5().hexdigest()


def path_of(number: int) -> str:
    return f"{number // PER_FOLDER:05}/{number % PER_FOLDER:04}"


class Bucket(BaseHTTPRequestHandler):
    """Lists `files` keys below data/; anything else is 404."""

    protocol_version = "HTTP/1.1"
    files = 0
    counted: ClassVar[dict[str, int]] = {}

    def do_GET(self) -> None:
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        if query.get("list-type") != "2":
            return self.other()
        self.counted["LIST"] = self.counted.get("LIST", 0) + 1
        begin = int(query.get("continuation-token", "0"))
        files = self.files if query.get("prefix") == "data/" else 0  # there is no trash
        end = min(begin + 1000, files)
        contents = "".join(
            f"<Contents><Key>data/{path_of(n)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{ETAG}&quot;</ETag><Size>0</Size></Contents>"
            for n in range(begin, end)
        )
        more = end < files
        token = f"<NextContinuationToken>{end}</NextContinuationToken>" if more else ""
        truncated = "true" if more else "false"
        self.answer(f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{token}{contents}</ListBucketResult>")

    def other(self) -> None:
        name = f"{self.command} {urllib.parse.urlsplit(self.path).path[:30]}"
        self.counted[name] = self.counted.get(name, 0) + 1
        self.answer("<Error><Code>NoSuchKey</Code></Error>", 404)

    def answer(self, text: str, status: int = 200) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_PUT = do_POST = do_DELETE = other

    def log_message(self, *_: object) -> None:
        pass


def run(command: list[object], env: dict[str, str]) -> tuple[float, float, int, str]:
    """Wall and CPU seconds, peak memory in KiB, output."""
    began = time.monotonic()
    with subprocess.Popen(list(map(str, command)), env=env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        out = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, out
    return time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss, out


def write_state(database: Path, directory: Path, files: int) -> None:
    """Every file is equal to its object (docs/format/link_state.md)."""

    def rows() -> Iterator[tuple]:
        for number in range(files):
            path = path_of(number)
            info = os.stat(directory / path)
            here = f"{info.st_dev:x}-{info.st_ino:x}-{info.st_size:x}-{info.st_mtime_ns:x}"
            yield path.encode(), info.st_size, here.encode(), info.st_ctime_ns, ETAG.encode()

    with sqlite3.connect(database) as db:
        db.executemany("REPLACE INTO files VALUES(?, ?, ?, ?, ?, NULL, 0, 0, x'')", rows())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, directory = Path(name), Path(name) / "directory"
        directory.mkdir()
        env = os.environ | {"MILLRACE_LINKS": str(folder / "links"), "AWS_ACCESS_KEY_ID": "a", "AWS_REGION": "us-east-1",
                            "AWS_SECRET_ACCESS_KEY": "b"}  # fmt: skip
        server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{server.server_address[1]}"
        quiet = {"env": env, "check": True, "stdout": subprocess.DEVNULL}
        subprocess.run([MILLRACE, "link", "add", directory, "s3://bucket/data", "--name=one"], **quiet)
        sweep = [MILLRACE, "link", "run", "one", "--once", "--json"]
        run(sweep, env)  # makes the state
        _, _, empty_kib, _ = run(sweep, env)
        for number in range(args.files):
            path = directory / path_of(number)
            if number % PER_FOLDER == 0:
                path.parent.mkdir()
            path.touch()  # empty: a million blocks are 4 GB
        write_state(folder / "links/one/state.db", directory, args.files)
        Bucket.files = args.files
        Bucket.counted.clear()
        wall, cpu, peak_kib, out = run(sweep, env)
        assert out == "", out[:1000]
        size = sum(path.stat().st_size for path in (folder / "links/one").glob("state.db*"))
        print(
            f"{args.files:,} unchanged files: {wall:.1f} s, {cpu:.1f} s of CPU, peak {peak_kib / 1024:.0f} MiB (without "
            f"files {empty_kib / 1024:.0f} MiB), state {size / 1e6:.0f} MB, requests: {Bucket.counted}"
        )


if __name__ == "__main__":
    main()
