# SPDX-License-Identifier: Apache-2.0
"""The S3 server that other tests use: it keeps its data, comes back after a kill, and leaves no process or file
behind."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from s3_fixture import S3, SERVER


def running(folder: Path) -> list[str]:
    """Command lines of processes that name the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(folder / "ceph.conf") in command:
            found.append(command.decode(errors="replace"))
    return found


def test_an_object_goes_in_and_out(s3: S3, bucket: str) -> None:
    key = "a b/ö+%&=?~'()*!.txt"
    s3.client.put_object(Bucket=bucket, Key=key, Body=b"bytes")
    assert s3.client.get_object(Bucket=bucket, Key=key)["Body"].read() == b"bytes"
    assert [each["Key"] for each in s3.client.list_objects_v2(Bucket=bucket)["Contents"]] == [key]


def test_a_killed_gateway_comes_back_with_its_data_and_stop_leaves_nothing(tmp_path: Path) -> None:
    server = S3.start(tmp_path / "server")
    try:
        bucket = server.bucket()
        server.client.put_object(Bucket=bucket, Key="k", Body=b"kept")
        os.kill(int(server.facts["S3_GATEWAY_PID"]), signal.SIGKILL)
        again = S3.start(tmp_path / "server")
        assert again.endpoint == server.endpoint
        assert again.client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"kept"
        subprocess.run([SERVER, "stop", tmp_path / "server"], check=True)
        assert running(tmp_path / "server") == []
    finally:
        server.destroy()
    assert not (tmp_path / "server").exists()
