# SPDX-License-Identifier: Apache-2.0
"""A link between a directory and a bucket, for tests."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from conftest import Millrace
from s3_fixture import S3

NOBODY = 65534


def within(seconds: float, holds: Callable[[], object]) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, holds
        time.sleep(0.05)


class Linked:
    """A link between a directory and a bucket."""

    def __init__(self, millrace: Millrace, s3: S3, folder: Path, *options: object):
        self.millrace, self.s3, self.bucket = millrace, s3, s3.bucket()
        self.directory = folder / "directory"
        self.directory.mkdir(exist_ok=True)
        millrace.env = millrace.env | s3.env | {"MILLRACE_LINKS": str(folder / "links")}
        self.url = f"s3://{self.bucket}/data"
        if not any(str(each).startswith("--poll") for each in options):
            options += ("--poll=200ms", "--poll-most=1s")
        millrace("link", "add", self.directory, self.url, "--name=one", "--quiet-time=0s", *options)

    def once(self, status: int = 0) -> list[dict]:
        return self.millrace("link", "run", "one", "--once", "--json", status=status).objects("link_event")

    def status(self, status: int = 0) -> dict:
        return self.millrace("link", "status", "one", "--json", status=status).object("link_status")

    def write(self, path: str, content: bytes) -> None:
        (self.directory / path).parent.mkdir(parents=True, exist_ok=True)
        (self.directory / path).write_bytes(content)

    def put(self, path: str, content: bytes, **options: object) -> None:
        self.s3.client.put_object(Bucket=self.bucket, Key=f"data/{path}", Body=content, **options)

    def files(self) -> dict[str, bytes]:
        found = {}
        for path in self.directory.rglob("*"):
            if ".millrace" in path.parts or not path.is_file():
                continue
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found[str(path.relative_to(self.directory))] = path.read_bytes()
        return found

    def objects(self) -> dict[str, bytes]:
        client = self.s3.client
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix="data/")
        keys = [each["Key"] for page in pages for each in page.get("Contents", []) if ".millrace" not in each["Key"]]
        found = {}
        for key in keys:
            with contextlib.suppress(client.exceptions.NoSuchKey):  # removed meanwhile
                found[key.removeprefix("data/")] = client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return found
