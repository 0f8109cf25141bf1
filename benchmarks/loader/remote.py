# SPDX-License-Identifier: Apache-2.0
"""What distance costs the loader: `python benchmarks/loader/remote.py --delays 0,0.02,0.1`.

A server on this machine answers each request after a delay. A new process reads token shards from it, with two threads,
rows of 2,048 tokens and batches of 16, from shuffled windows all over the dataset:

  first     wall seconds to the first batch: every index read and verified, the first windows read
  rate      million tokens a second of wall time, of the batches behind it
  requests  until the last batch

Needs the packages numpy and xxhash.
"""

import argparse
import http.server
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

from documents import write_shard

SHARD_DOCUMENTS = 20_000
BATCHES = 300


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder = pathlib.Path()
    delay = 0.0
    requests = 0

    def log_message(self, *arguments: object) -> None:
        pass

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/requests":
            return self.reply(200, str(Handler.requests).encode())
        Handler.requests += 1
        time.sleep(self.delay)
        file = self.folder / self.path[1:]
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not file.exists() or span is None:
            return self.reply(404, b"")
        size, begin = file.stat().st_size, int(span[1])
        end = min(int(span[2]) + 1, size)
        with file.open("rb") as opened:
            opened.seek(begin)
            body = opened.read(end - begin)
        self.reply(206, body, Content_Range=f"bytes {begin}-{end - 1}/{size}", ETag=f'"{size}"')


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, *arguments: object) -> None:
        pass  # a loader that closes ends what is under way


def serve(folder: pathlib.Path, delay: float) -> None:
    Handler.folder, Handler.delay = folder, delay
    with Server(("127.0.0.1", 0), Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


def measure(shards: str, collate: str) -> dict:
    import millrace as mr

    start = time.perf_counter()
    with mr.Loader(shards, batch_size=16, seq_len=2048, collate=collate, seed=1, num_threads=2) as loader:
        next(loader)
        first, tokens = time.perf_counter() - start, loader.stats()["tokens"]
        for _ in range(BATCHES):
            next(loader)
        seconds = time.perf_counter() - start - first
        return {"first": first, "rate": (loader.stats()["tokens"] - tokens) / seconds / 1e6}


def run(folder: pathlib.Path, shards: int, delay: float, collate: str) -> dict:
    command = [sys.executable, __file__, "--serve", str(folder), "--delays", str(delay)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        pattern = f"{url}/{{000..{shards - 1:03d}}}.bin"
        done = subprocess.run(
            [sys.executable, __file__, "--measure", pattern, "--collate", collate],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        with urllib.request.urlopen(f"{url}/requests") as answer:
            requests = int(answer.read())
        server.kill()
    return json.loads(done.stdout) | {"requests": requests}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delays", default="0,0.02,0.1", help="comma-separated seconds")
    parser.add_argument("--shards", type=int, default=40)
    parser.add_argument("--collate", default="pad,pack", help="pack, pad, or both")
    parser.add_argument("--serve", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", metavar="SHARDS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, float(args.delays))
        return 0
    if args.measure:
        print(json.dumps(measure(args.measure, args.collate)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for number in range(args.shards):
            write_shard(folder / f"{number:03d}.bin", SHARD_DOCUMENTS)
        print("| delay, ms | collate | first, s | rate, M tokens/s | requests |\n|---|---|---|---|---|")
        for delay in [float(word) for word in args.delays.split(",")]:
            for collate in args.collate.split(","):
                row = run(folder, args.shards, delay, collate)
                print(
                    f"| {delay * 1000:.0f} | {collate} | {row['first']:.2f} | {row['rate']:.1f} | {row['requests']} |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
