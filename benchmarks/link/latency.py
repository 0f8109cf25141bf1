# SPDX-License-Identifier: Apache-2.0
"""From the end of a PUT to the file in the directory: with the bucket's notices (Ceph's gateway sends them) and by
polling, with 10 and 100,000 keys in the bucket.

    python benchmarks/link/latency.py [--keys 10,100000] [--puts 60] [--pause 1]

The link has its defaults. PUTs follow each other by --pause seconds, in which the one before may still be under way.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import botocore.session

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/services"))
from s3_fixture import S3  # noqa: E402

MILLRACE = os.environ.get("MILLRACE_BIN") or str(ROOT / ".venv/bin/millrace")


def notify(s3: S3, bucket: str, address: str) -> None:
    topics = botocore.session.get_session().create_client(
        "sns", s3.region, endpoint_url=s3.endpoint, aws_access_key_id=s3.access_key, aws_secret_access_key=s3.secret_key
    )
    topic = topics.create_topic(Name=f"topic-{bucket}", Attributes={"push-endpoint": address})["TopicArn"]
    events = [{"Id": "n", "TopicArn": topic, "Events": ["s3:ObjectCreated:*"]}]
    s3.client.put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={"TopicConfigurations": events}
    )


def measure(s3: S3, keys: int, events: bool, puts: int, pause: float) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        directory = folder / "directory"
        for number in range(keys):
            path = directory / f"{number // 1000:04}/{number:07}"
            if number % 1000 == 0:
                path.parent.mkdir(parents=True)
            path.write_bytes(b"%d" % number)
        bucket = s3.bucket()
        env = os.environ | s3.env | {"MILLRACE_LINKS": str(folder / "links")}
        quiet = {"env": env, "check": True, "stdout": subprocess.DEVNULL}
        subprocess.run([MILLRACE, "link", "add", directory, f"s3://{bucket}/data", "--name=one"], **quiet)
        began = time.monotonic()
        subprocess.run([MILLRACE, "link", "run", "--once"], **quiet)
        first_s = time.monotonic() - began
        more = ["--listen=127.0.0.1:0"] if events else []
        with subprocess.Popen([MILLRACE, "link", "run", *more], env=env, stderr=subprocess.PIPE, text=True,
                              stdout=subprocess.DEVNULL) as link:  # fmt: skip
            assert link.stderr
            if events:
                notify(s3, bucket, link.stderr.readline().split()[-1])
            # The sweeps become as seldom as they do when nothing changes.
            time.sleep(20)
            client, waiting, took = s3.client, {}, []
            next_put, number = time.monotonic(), 0
            until = next_put + puts * pause + 150
            while (number < puts or waiting) and time.monotonic() < until:
                if number < puts and time.monotonic() >= next_put:
                    client.put_object(Bucket=bucket, Key=f"data/new/{number:04}", Body=b"x" * 1000)
                    waiting[directory / f"new/{number:04}"] = time.monotonic()
                    number, next_put = number + 1, next_put + pause
                for path in [path for path in waiting if path.exists()]:
                    took.append(time.monotonic() - waiting.pop(path))
                time.sleep(0.002)
            link.terminate()
        took.sort()
        return (
            f"{keys:8,} keys  {'notices' if events else 'polling'}  median {statistics.median(took):7.3f} s  "
            f"99 % {took[min(len(took) - 1, int(0.99 * len(took)))]:7.3f} s  {len(took)} of {puts} seen  "
            f"(first export of all: {first_s:.0f} s)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", default="10,100000")
    parser.add_argument("--puts", type=int, default=60)
    parser.add_argument("--pause", type=float, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        s3 = S3.start(Path(folder) / "s3")
        try:
            for keys in map(int, args.keys.split(",")):
                for events in (True, False):
                    print(measure(s3, keys, events, args.puts, args.pause), flush=True)
        finally:
            s3.destroy()


if __name__ == "__main__":
    main()
