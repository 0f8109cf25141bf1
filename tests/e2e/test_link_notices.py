# SPDX-License-Identifier: Apache-2.0
"""What a bucket tells by itself: pushed notices, a queue's, and checksums."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import botocore.session
import pytest
from botocore.client import BaseClient
from conftest import Millrace, kill
from links import Linked, within
from s3_fixture import S3

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine


def test_notices_of_the_bucket_are_followed_at_once(millrace: Millrace, s3: S3, tmp_path: Path):
    """Ceph's gateway pushes them for real."""
    link = Linked(millrace, s3, tmp_path, "--import=new,changed,deleted", "--poll=10min")
    (tmp_path / "secret").write_text("only we know\n")
    process = millrace.start("link", "run", "one", "--no-watch", "--listen=127.0.0.1:0",
                             f"--secret-file={tmp_path / 'secret'}", "--json")  # fmt: skip
    try:
        assert process.stderr
        address = process.stderr.readline().split()[-1]
        topics = botocore.session.get_session().create_client(
            "sns", s3.region, endpoint_url=s3.endpoint, aws_access_key_id=s3.access_key,
            aws_secret_access_key=s3.secret_key)  # fmt: skip
        topic = f"topic-{link.bucket}"
        made = topics.create_topic(Name=topic, Attributes={"push-endpoint": address, "OpaqueData": "only we know"})
        notify = {"TopicConfigurations": [{"Id": "n", "TopicArn": made["TopicArn"], "Events": ["s3:ObjectCreated:*"]}]}
        s3.client.put_bucket_notification_configuration(Bucket=link.bucket, NotificationConfiguration=notify)
        # The first sweep is over, the next is ten minutes away: only notices bring what comes now.
        within(120, lambda: link.status()["doing"] == "waiting for changes")
        for number in range(3):
            link.put(f"folder/{number} ä+b", b"told")
        within(120, lambda: len(link.files()) == 3)
        refused = urllib.request.Request(address, data=b'{"Records": [{"s3": {"bucket": {}, "object": {}}}]}')
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(refused, timeout=10)
        process.stderr.readline()
        assert "came with no secret and is refused" in process.stderr.readline()
    finally:
        kill(process)


class Moto:
    """moto's server as S3 and SQS, which checks signatures and sends S3's notices to queues as AWS does."""

    def __init__(self, folder: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{port}"
        # The first requests make the user; from then on each must be signed by one.
        env = os.environ | {"INITIAL_NO_AUTH_ACTION_COUNT": "3"}
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        with (folder / "moto.log").open("wb") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        within(60, lambda: answers(port))
        self.keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
        users = self.client("iam")
        users.create_user(UserName="link")
        made = users.create_access_key(UserName="link")["AccessKey"]
        allowed = {"Effect": "Allow", "Action": ["s3:*", "sqs:*"], "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        users.put_user_policy(UserName="link", PolicyName="all", PolicyDocument=policy)
        self.keys = {"AWS_ACCESS_KEY_ID": made["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"]}
        self.env = self.keys | {"AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": "us-east-1"}

    def client(self, service: str) -> BaseClient:
        return botocore.session.get_session().create_client(
            service, "us-east-1", endpoint_url=self.endpoint, aws_access_key_id=self.keys["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.keys["AWS_SECRET_ACCESS_KEY"])  # fmt: skip


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.fixture
def moto(tmp_path: Path) -> Iterator[Moto]:
    server = Moto(tmp_path)
    yield server
    server.process.kill()
    server.process.wait()


def test_notices_of_a_queue_are_followed_and_removed(millrace: Millrace, tmp_path: Path, moto: Moto):
    s3, sqs = moto.client("s3"), moto.client("sqs")
    s3.create_bucket(Bucket="data")
    queue = sqs.create_queue(QueueName="notices")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    notify = {"QueueConfigurations": [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}]}
    s3.put_bucket_notification_configuration(Bucket="data", NotificationConfiguration=notify)
    foreign = {"Records": [{"eventSource": "aws:s3", "s3": {"bucket": {"name": "other"}, "object": {"key": "x"}}}]}
    sqs.send_message(QueueUrl=queue, MessageBody=json.dumps(foreign))

    def messages() -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        told = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
        return sum(int(told[name]) for name in names)

    directory = tmp_path / "directory"
    directory.mkdir()
    millrace.env = millrace.env | moto.env | {"MILLRACE_LINKS": str(tmp_path / "links")}
    # After the first sweep there is none in the time of this test: what comes is told by the queue.
    millrace("link", "add", directory, "s3://data/set", "--name=one", "--import=new,changed,deleted", "--poll=1h",
             "--quiet-time=0s")  # fmt: skip
    process = millrace.start("link", "run", "one", "--queue", queue)
    try:
        within(120, lambda: messages() == 1)  # moto's test event is removed, the foreign one stays
        within(120, lambda: millrace("link", "status", "one", "--json").object("link_status")["last_sweep"])
        names = ["folder/ä b+c.txt", "plain"]
        for name in names:
            s3.put_object(Bucket="data", Key=f"set/{name}", Body=name.encode())
        within(60, lambda: all((directory / name).exists() for name in names))
        assert [(directory / name).read_text() for name in names] == names
        within(120, lambda: messages() == 1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        assert err.count("of the bucket other, which no link here has") == 1
    finally:
        if process.poll() is None:
            kill(process)

    # A wrong secret is said, and the link goes on without the queue.
    local = tmp_path / "local"
    local.mkdir()
    (tmp_path / "there").mkdir()
    millrace("link", "add", local, tmp_path / "there", "--name=two", "--quiet-time=0s", "--poll=200ms")
    millrace.env["AWS_SECRET_ACCESS_KEY"] = "wrong"
    process = millrace.start("link", "run", "two", "--queue", queue)
    try:
        assert process.stderr
        within(120, lambda: "403" in process.stderr.readline())
        (local / "file").write_bytes(b"x")
        within(120, lambda: (tmp_path / "there/file").exists())
    finally:
        kill(process)
    assert "no URL of a queue" in millrace.fails("link", "run", "two", "--queue", "notices")


def crc32c(content: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return (crc ^ 0xFFFFFFFF).to_bytes(4, "big")


def test_wait_names_the_servers_checksum_before_the_etag(millrace: Millrace, tmp_path: Path, moto: Moto):
    s3 = moto.client("s3")
    s3.create_bucket(Bucket="data")
    # moto keeps the checksums of some uploads only.
    contents = {"with": b"a checksum of the whole", "without": b"an ETag"}
    sums = {"ChecksumAlgorithm": "CRC32C", "ChecksumCRC32C": base64.b64encode(crc32c(contents["with"])).decode()}
    s3.put_object(Bucket="data", Key="set/with", Body=contents["with"], **sums)
    request = s3.head_object(Bucket="data", Key="set/with", ChecksumMode="ENABLED")
    assert request["ChecksumCRC32C"] == sums["ChecksumCRC32C"]
    directory = tmp_path / "directory"
    directory.mkdir()
    (directory / "without").write_bytes(contents["without"])
    millrace.env = millrace.env | moto.env | {"MILLRACE_LINKS": str(tmp_path / "links")}
    millrace("link", "add", directory, "s3://data/set", "--name=one", "--quiet-time=0s")
    millrace("link", "run", "one", "--once")
    assert {each.name: each.read_bytes() for each in directory.iterdir() if each.is_file()} == contents
    assert millrace("link", "wait", directory, "--json").object("link_wait")["proofs"] == {"checksum": 1, "etag": 1}
    assert "1 by checksum, 1 by etag" in millrace("link", "wait", directory).out
