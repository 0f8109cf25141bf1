# SPDX-License-Identifier: Apache-2.0
"""Copies to and from a real S3 server through a line that damages them, with TLS and other names, into a bucket that
vanishes, and of listings of every length; a small server here gives what no real server gives on demand."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from bad_line import Line
from conftest import Millrace, kill, measured
from s3_fixture import S3
from test_transfer import make, read
from test_transfer_faults import mount

MIB = 1 << 20


@pytest.fixture
def line(s3):
    line = Line(s3.endpoint)
    yield line
    line.server.shutdown()
    line.server.server_close()


def test_bits_that_flip_on_the_way_are_found(
    cloud: Millrace, bucket: str, line: Line, tmp_path: Path, seeded: random.Random
) -> None:
    url = f"s3://{bucket}/large"
    content = seeded.randbytes(40 * MIB)
    (tmp_path / "large").write_bytes(content)
    cloud("cp", "large", url)
    there = ["--endpoint-url", line.endpoint]
    line.flip(seeded, wanted_up=False, times=3)
    cloud("cp", url, "back", *there)
    assert line.flipped == 3
    assert (tmp_path / "back").read_bytes() == content
    line.flip(seeded, wanted_up=False, times=10**9)
    (tmp_path / "back").unlink()
    assert "has the hash" in cloud("cp", url, "back", *there, status=1).err
    assert [path.name for path in tmp_path.iterdir() if "back" in path.name] == []
    # On its way up: by the CRC-32C or the MD5 that went along, the server refuses it.
    line.flip(seeded, wanted_up=True, times=1)
    sent = cloud("cp", "large", f"s3://{bucket}/refused", "--json", *there).object("transfer_summary")
    assert line.flipped == 1 and sent["retries"] > 0
    cloud("verify", "large", f"s3://{bucket}/refused")


@pytest.mark.parametrize("how", ["cut", "reset"])
def test_a_line_that_breaks_again_and_again(
    cloud: Millrace, s3, bucket: str, line: Line, tmp_path: Path, seeded: random.Random, how: str
) -> None:
    files = {f"{i:02}": seeded.randbytes(3 * MIB) for i in range(16)} | {"large": seeded.randbytes(40 * MIB)}
    make(tmp_path / "src", files)
    there = ["--json", "--endpoint-url", line.endpoint]
    for source, target in (("src", f"s3://{bucket}/p"), (f"s3://{bucket}/p", "back")):
        line.break_off(seeded, how == "reset")
        done = cloud("sync", source, target, *there).object("transfer_summary")
        assert line.broken > 2 and done["retries"] > 0 and done["copied_files"] == len(files)
    assert read(tmp_path / "back") == files
    for name, content in files.items():
        assert s3.client.get_object(Bucket=bucket, Key=f"p/{name}")["Body"].read() == content


def test_tls_with_its_own_authority(cloud: Millrace, s3, bucket: str, tmp_path: Path) -> None:
    if not s3.tls_endpoint:
        pytest.skip("the server has no TLS")
    files = {"a": b"1", "large": os.urandom(20 * MIB)}
    make(tmp_path / "src", files)
    refused = cloud("cp", "src", f"s3://{bucket}/p", "--recursive", "--endpoint-url", s3.tls_endpoint, status=1)
    assert "certificate" in refused.err
    cloud.env["AWS_CA_BUNDLE"] = s3.ca_file
    cloud("cp", "src", f"s3://{bucket}/p", "--recursive", "--endpoint-url", s3.tls_endpoint)
    cloud("cp", f"s3://{bucket}/p", "back", "--recursive", "--endpoint-url", s3.tls_endpoint)
    assert read(tmp_path / "back") == files


def test_the_bucket_in_the_host(cloud: Millrace, s3, tmp_path: Path) -> None:
    if not s3.domain:
        pytest.skip("the server has no domain of buckets")
    name = s3.bucket()
    (tmp_path / "config").write_text("[default]\ns3 =\n    addressing_style = virtual\n")
    cloud.env |= {"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_ENDPOINT_URL": f"http://{s3.domain}"}
    (tmp_path / "ä b").write_text("content")
    cloud("cp", "ä b", f"s3://{name}/ä b+c")
    assert cloud("cat", f"s3://{name}/ä b+c").out == "content"
    seen = s3.client.list_objects_v2(Bucket=name)["Contents"]
    assert [each["Key"] for each in seen] == ["ä b+c"]


def test_a_bucket_that_vanishes(cloud: Millrace, s3, tmp_path: Path) -> None:
    """Between one run and the next, and in the middle of one."""
    name = s3.bucket()
    make(tmp_path / "src", {f"{i:04}": b"x" * 1000 for i in range(300)})
    cloud("sync", "src", f"s3://{name}")
    s3.remove_buckets()
    make(tmp_path / "back", {"0000": b"x" * 1000, "kept": b"only here"})
    failed = cloud("sync", f"s3://{name}", "back", "--delete", status=1)
    assert name in failed.err
    assert read(tmp_path / "back") == {"0000": b"x" * 1000, "kept": b"only here"}
    failed = cloud("sync", "src", f"s3://{name}", status=1)
    assert name in failed.err and "NoSuchBucket" in failed.err

    name = s3.bucket()
    (tmp_path / "big").write_bytes(os.urandom(64 * MIB))
    child = cloud.start("cp", "big", f"s3://{name}/big", "--bwlimit", "16MiB")
    client = s3.client
    deadline = time.monotonic() + 30
    while not (begun := client.list_multipart_uploads(Bucket=name).get("Uploads")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert begun
    client.abort_multipart_upload(Bucket=name, Key="big", UploadId=begun[0]["UploadId"])
    client.delete_bucket(Bucket=name)
    error = child.communicate(timeout=60)[1]
    assert child.returncode == 1
    assert f"s3://{name}/big" in error


def test_a_download_to_a_disk_that_is_full_or_read_only(cloud: Millrace, bucket: str, tmp_path: Path) -> None:
    files = {f"{i:04}": b"%d" % i for i in range(2000)}  # a page each, which no sum of sizes tells
    make(tmp_path / "src", files)
    cloud("sync", "src", f"s3://{bucket}/p")
    disk = tmp_path / "disk"
    mount(disk, "-t", "tmpfs", "-o", "size=4m,nr_inodes=5000", "tmpfs")
    try:
        assert "No space left on device" in cloud("sync", f"s3://{bucket}/p", disk / "to", status=1).err
        there = read(disk / "to")
        assert 0 < len(there) < len(files) and there.items() <= files.items()
        subprocess.run(["mount", "-o", "remount,size=64m,ro", disk], check=True)
        assert "Read-only file system" in cloud("sync", f"s3://{bucket}/p", disk / "to", status=1).err
        assert read(disk / "to") == there
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        cloud("sync", f"s3://{bucket}/p", disk / "to")
        assert read(disk / "to") == files
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_bucket_with_a_quota(cloud: Millrace, tmp_path: Path) -> None:
    """Files that fit arrive whole, the others are named, and the next run brings them when there is room."""
    own = S3.start(tmp_path / "server")
    try:
        cloud.env |= own.env
        name = own.bucket()
        admin = ["radosgw-admin", "-c", own.facts["S3_CEPH_CONF"], "-n", "client.rgw", "quota"]
        scope = ["--quota-scope=bucket", f"--bucket={name}"]

        def allow(size_bytes: int) -> None:
            subprocess.run([*admin, "set", *scope, f"--max-size={size_bytes}"], check=True, capture_output=True)
            subprocess.run([*admin, "enable", *scope], check=True, capture_output=True)

        allow(30 * MIB)
        files = {f"{i}": os.urandom(4 * MIB) for i in range(6)}
        make(tmp_path / "src", files)
        cloud("sync", "src", f"s3://{name}/p")  # this server counts what has arrived, not what is on its way
        files |= {f"more-{i}": os.urandom(7 * MIB) for i in range(3)} | {"large": os.urandom(40 * MIB)}
        make(tmp_path / "src", files)
        for _ in range(2):
            failed = cloud("sync", "src", f"s3://{name}/p", status=1)
            assert "QuotaExceeded" in failed.err + failed.out and f"s3://{name}/p/large" in failed.err + failed.out
            there = own.client.list_objects_v2(Bucket=name, Prefix="p/")["Contents"]
            assert {each["Key"] for each in there if "/.millrace/" not in each["Key"]} == {f"p/{i}" for i in range(6)}
        allow(100 * MIB)
        cloud("sync", "src", f"s3://{name}/p")
        cloud("sync", f"s3://{name}/p", "back")
        assert read(tmp_path / "back") == files
        assert not own.client.list_multipart_uploads(Bucket=name).get("Uploads")
    finally:
        own.destroy()


@pytest.mark.parametrize("count", [0, 1, 1000, 1001])
def test_listings_of_every_length(cloud: Millrace, bucket: str, tmp_path: Path, count: int) -> None:
    (tmp_path / "src").mkdir()
    for i in range(count):
        (tmp_path / "src" / f"{i:04}").touch()
    cloud("sync", "src", f"s3://{bucket}/p")
    listed = cloud("ls", f"s3://{bucket}/p/", "--recursive", "--json", status=0 if count else 1)
    assert len(listed.objects("object")) == count
    again = cloud("sync", "src", f"s3://{bucket}/p", "--json").object("transfer_summary")
    assert (again["copied_files"], again["skipped_files"]) == (0, count)


class Endless(BaseHTTPRequestHandler):
    """ListObjectsV2 of `keys` objects without a server's patience for storing them."""

    protocol_version = "HTTP/1.1"
    keys = 100_000

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        first = int(query.get("continuation-token", ["0"])[0])
        last = min(first + 1000, self.keys)
        entries = "".join(
            f"<Contents><Key>p/{i:09}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f'<ETag>"{i:032x}"</ETag><Size>{i % 1000}</Size></Contents>'
            for i in range(first, last)
        )
        more = last < self.keys
        token = f"<NextContinuationToken>{last}</NextContinuationToken>" if more else ""
        body = (
            f'<?xml version="1.0"?><ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}'
            f"{entries}</ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


ENDLESS = "s3://endless/p/"
LIST = f"import millrace\nfor each in millrace.ls({ENDLESS!r}, recursive=True): print(each['path'])"


@pytest.mark.parametrize("what", ["ls", "sync", "rm", "python"])
def test_a_listing_of_any_length_takes_the_same_memory(cloud: Millrace, tmp_path: Path, what: str) -> None:
    command = {
        "ls": [cloud.binary, "ls", ENDLESS, "--recursive"],
        "sync": [cloud.binary, "sync", ENDLESS, "here", "--dry-run", "--quiet"],
        "rm": [cloud.binary, "rm", ENDLESS, "--recursive", "--dry-run", "--quiet"],
        "python": [sys.executable, "-c", LIST],
    }[what]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    cloud.env["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{server.server_address[1]}"
    peaks = {}
    try:
        for Endless.keys in (50_000, 250_000):  # a sync plans 32,768 ahead
            said, peaks[Endless.keys] = measured(command, tmp_path, cloud.env)
            paths = re.findall(r"^.*\b(\d{9})\b", said, re.MULTILINE)
            assert paths == [f"{i:09}" for i in range(Endless.keys)]
    finally:
        server.shutdown()
        server.server_close()
    assert peaks[250_000] < peaks[50_000] + 8 * 1024, peaks


def test_killed_again_and_again(cloud: Millrace, bucket: str, tmp_path: Path, seeded: random.Random) -> None:
    """kill -9 at random moments of a sync up and one down, hundreds of times in ./dev soak; then one run is enough."""
    files = {f"d{i % 3}/{i:02}": seeded.randbytes([0, 10, 100_000, 9 * MIB][i % 4]) for i in range(32)}
    make(tmp_path / "src", files)
    for source, target in (("src", f"s3://{bucket}/p"), (f"s3://{bucket}/p", "back")):
        killed = 0
        for turn in range(int(os.environ.get("MILLRACE_TEST_KILLS", "6"))):
            child = cloud.start("sync", source, target, "--quiet")
            time.sleep(seeded.random() * 1.2 if turn else 0.1)
            killed += kill(child)
            if target == "back" and (tmp_path / "back").exists():
                for path in (p for p in (tmp_path / "back").rglob("*") if p.is_file() and ".millrace" not in str(p)):
                    assert path.read_bytes() == files[str(path.relative_to(tmp_path / "back"))], path
        assert killed > 0
        cloud("sync", source, target)
        cloud("verify", source, target)
    assert read(tmp_path / "back") == files
