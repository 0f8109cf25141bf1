# SPDX-License-Identifier: Apache-2.0
"""Keys that are taken away in the middle of a copy and given back, and a clock that is wrong, with a real S3 server."""

from __future__ import annotations

import dataclasses
import os
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Millrace, preloaded
from s3_fixture import S3
from test_transfer import make, read

MIB = 1 << 20
KEY = ["--uid=extra", "--access-key=extrakey"]
# What the server answers then. While a key is being removed, it may still be known and already without rights.
TAKEN = {
    "key": (
        ["key", "rm", *KEY],
        ["key", "create", *KEY, "--secret-key=extrasecret"],
        "InvalidAccessKeyId|AccessDenied",
    ),
    "user": (["user", "suspend", "--uid=extra"], ["user", "enable", "--uid=extra"], "UserSuspended"),
}

# What `faketime` does, as far as this program asks for the time of day.
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec* now) {
  static int (*real)(clockid_t, struct timespec*);
  if (!real) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int status = real(id, now);
  if (status == 0 && id == CLOCK_REALTIME) now->tv_sec += atol(getenv("WRONG_BY_S"));
  return status;
}
time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    server = S3.start(tmp_path_factory.mktemp("s3") / "server")
    yield server
    server.destroy()


@pytest.fixture
def admin(server: S3) -> Callable[..., None]:
    command = ["radosgw-admin", "-c", server.facts["S3_CEPH_CONF"], "-n", "client.rgw"]

    def run(*words: str) -> None:
        subprocess.run([*command, *words], check=True, capture_output=True, timeout=60)

    return run


@pytest.fixture
def extra(server: S3, admin: Callable[..., None], millrace: Millrace) -> Iterator[S3]:
    """The server for another user, whose environment `millrace` has."""
    admin("user", "create", "--display-name=extra", *KEY, "--secret-key=extrasecret")
    extra = dataclasses.replace(server, access_key="extrakey", secret_key="extrasecret", buckets=[])
    millrace.env = {k: v for k, v in millrace.env.items() if not k.startswith("AWS_")} | extra.env
    yield extra
    admin("user", "rm", "--uid=extra", "--purge-data")


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def objects(s3: S3, bucket: str) -> dict[str, bytes]:
    client = s3.client
    listed = client.list_objects_v2(Bucket=bucket).get("Contents", [])
    names = [each["Key"] for each in listed if "/.millrace/" not in each["Key"]]
    return {name: client.get_object(Bucket=bucket, Key=name)["Body"].read() for name in names}


@pytest.mark.parametrize("what", TAKEN)
def test_a_key_that_is_taken_away_in_the_middle(
    millrace: Millrace, extra: S3, admin: Callable[..., None], tmp_path: Path, seeded: random.Random, what: str
) -> None:
    take, give, code = TAKEN[what]
    files = {f"{i:02}": seeded.randbytes(MIB) for i in range(12)} | {"large": seeded.randbytes(40 * MIB)}
    make(tmp_path / "src", files)
    bucket = extra.bucket()
    url = f"s3://{bucket}/p"

    up = millrace.start("sync", "src", url, "--bwlimit", "10MiB")
    client = extra.client
    wait_for(lambda: client.list_multipart_uploads(Bucket=bucket).get("Uploads"))
    admin(*take)
    said = "".join(up.communicate(timeout=60))
    assert up.returncode == 1 and "403" in said and re.search(code, said) and f"{url}/large" in said
    assert "extrasecret" not in said
    failed = millrace("sync", "src", url, status=1)
    assert "403" in failed.err and re.search(code, failed.err)
    admin(*give)
    there = objects(extra, bucket)
    assert "p/large" not in there and there.items() <= {f"p/{name}": content for name, content in files.items()}.items()
    millrace("sync", "src", url)
    assert objects(extra, bucket) == {f"p/{name}": content for name, content in files.items()}
    assert not client.list_multipart_uploads(Bucket=bucket).get("Uploads")

    down = millrace.start("sync", url, "back", "--bwlimit", "10MiB")
    unfinished = (tmp_path / "back").rglob
    wait_for(lambda: any(path.is_file() and path.stat().st_blocks > 2 * MIB // 512 for path in unfinished("*")))
    admin(*take)
    said = "".join(down.communicate(timeout=60))
    assert down.returncode == 1 and "403" in said and re.search(code, said) and f"{url}/large" in said
    here = read(tmp_path / "back")
    assert "large" not in here
    assert {name: content for name, content in here.items() if ".millrace-tmp." not in name}.items() <= files.items()
    failed = millrace("sync", url, "back", "--delete", status=1)
    assert "403" in failed.err and re.search(code, failed.err) and read(tmp_path / "back") == here
    admin(*give)
    millrace("sync", url, "back")
    assert read(tmp_path / "back") == files


@pytest.mark.parametrize("wrong_by_s", [3600, -3600, 10 * 365 * 86400, -10 * 365 * 86400])
def test_a_clock_that_is_wrong(millrace: Millrace, server: S3, tmp_path: Path, wrong_by_s: int) -> None:
    millrace.env = {k: v for k, v in millrace.env.items() if not k.startswith("AWS_")} | server.env
    wrong = preloaded(CLOCK, tmp_path) | {"WRONG_BY_S": str(wrong_by_s)}
    files = {"a": b"1", "large": os.urandom(20 * MIB), **{f"d/{i}": b"%d" % i for i in range(100)}}
    make(tmp_path / "src", files)
    bucket = server.bucket()
    url = f"s3://{bucket}/p"
    said = millrace("sync", "src", url, env=wrong).err
    (warning,) = [line for line in said.splitlines() if "clock" in line]
    found = re.search(r"is (\d+) s (ahead of|behind) this machine's", warning)
    assert found and found[2] == ("ahead of" if wrong_by_s < 0 else "behind")
    assert bucket in warning and abs(int(found[1]) - abs(wrong_by_s)) < 60
    millrace("sync", url, "back", env=wrong)
    assert read(tmp_path / "back") == files
    assert millrace("sync", url, "back", "--json", env=wrong).object("transfer_summary")["moved_bytes"] == 0
    millrace("verify", "src", url)
