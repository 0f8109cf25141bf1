# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that need an S3 server; pyproject.toml loads them for every folder of tests.

MILLRACE_TEST_S3 names an endpoint that answers already (with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION), be
it the one that `./dev test` starts or a real one; without it a server is started for the session.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import botocore.session
import pytest
from botocore.client import BaseClient, Config

SERVER = Path(__file__).with_name("s3_server")


@dataclass
class S3:
    endpoint: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"
    tls_endpoint: str | None = None
    ca_file: str | None = None
    domain: str | None = None  # buckets are hosts below it
    folder: Path | None = None  # of a server that this session started: a test may stop and start it
    facts: dict[str, str] = field(default_factory=dict)  # what s3_server printed
    buckets: list[str] = field(default_factory=list)

    @classmethod
    def start(cls, folder: Path, *options: str) -> S3:
        """Starts a separate server, to be killed, stopped or throttled; `destroy` ends it. Takes about two
        seconds."""
        if not shutil.which("radosgw", path=f"{os.environ['PATH']}:/usr/bin:/usr/sbin"):
            pytest.skip("radosgw is not installed: no S3 server to test with (./dev test installs it)")
        command = [SERVER, "start", *options, folder]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=180)
        facts = dict(line.split("=", 1) for line in done.stdout.splitlines())
        return cls(
            facts["S3_ENDPOINT"],
            facts["AWS_ACCESS_KEY_ID"],
            facts["AWS_SECRET_ACCESS_KEY"],
            facts["AWS_REGION"],
            facts.get("S3_TLS_ENDPOINT"),
            facts.get("S3_CA_FILE"),
            facts.get("S3_DOMAIN"),
            folder,
            facts,
        )

    @classmethod
    def of_environment(cls) -> S3:
        """The one that MILLRACE_TEST_S3 names."""
        return cls(
            os.environ["MILLRACE_TEST_S3"],
            os.environ["AWS_ACCESS_KEY_ID"],
            os.environ["AWS_SECRET_ACCESS_KEY"],
            os.environ.get("AWS_REGION", "us-east-1"),
            os.environ.get("MILLRACE_TEST_S3_TLS"),
            os.environ.get("MILLRACE_TEST_S3_CA"),
            os.environ.get("MILLRACE_TEST_S3_DOMAIN"),
        )

    def destroy(self) -> None:
        subprocess.run([SERVER, "destroy", self.folder], check=True, timeout=60)

    @property
    def env(self) -> dict[str, str]:
        """The environment with which a program reaches this server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def client(self) -> BaseClient:
        """botocore's client for this server: the other side's view of a test."""
        session = botocore.session.Session(session_vars={"config_file": (None, None, os.devnull, None)})
        return session.create_client(
            "s3",
            region_name=self.region,
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(
                s3={"addressing_style": "path"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def bucket(self) -> str:
        """The name of a new, empty bucket."""
        name = f"millrace-test-{uuid.uuid4().hex[:16]}"
        self.client.create_bucket(Bucket=name)
        self.buckets.append(name)
        return name

    def remove_buckets(self) -> None:
        client = self.client
        for name in self.buckets:
            with contextlib.suppress(client.exceptions.NoSuchBucket):
                for page in client.get_paginator("list_objects_v2").paginate(Bucket=name):
                    for each in page.get("Contents", []):
                        client.delete_object(Bucket=name, Key=each["Key"])
                for upload in client.list_multipart_uploads(Bucket=name).get("Uploads", []):
                    client.abort_multipart_upload(Bucket=name, Key=upload["Key"], UploadId=upload["UploadId"])
                client.delete_bucket(Bucket=name)
        self.buckets.clear()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """One server for the whole session."""
    if os.environ.get("MILLRACE_TEST_S3"):
        server = S3.of_environment()
        yield server
        # ./dev removes the server that it started with all its data.
        if not os.environ.get("MILLRACE_TEST_S3_TEMPORARY"):
            server.remove_buckets()
        return
    server = S3.start(tmp_path_factory.mktemp("s3") / "server", "--tls")
    yield server
    server.destroy()


@pytest.fixture
def bucket(s3: S3) -> str:
    """A new, empty bucket of the session's server."""
    return s3.bucket()
