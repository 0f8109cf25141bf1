# SPDX-License-Identifier: Apache-2.0
"""A link whose bucket takes requests and answers none."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
import urllib.parse
from pathlib import Path

import pytest
from conftest import Millrace, kill
from links import Linked, within
from s3_fixture import S3

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine


class SilentProxy:
    """Passes bytes on to a server, until it is told to be silent: then it takes requests and answers none. While the
    server is away, connections end at once."""

    def __init__(self, server: tuple[str, int]):
        self.server, self.silent, self.away = server, False, False
        self.socket = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self.socket.accept()
                if self.away:
                    client.close()
                    continue
                server = socket.create_connection(self.server)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self.pump, args=ends, daemon=True).start()

    def pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not self.silent:
                    target.sendall(data)
        if not self.silent:
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)


def test_a_silent_server_is_told_with_its_time(millrace: Millrace, s3: S3, tmp_path: Path):
    address = urllib.parse.urlsplit(s3.endpoint)
    proxy = SilentProxy((address.hostname, address.port))
    link = Linked(millrace, s3, tmp_path, "--import=new,changed,deleted")
    millrace.env = millrace.env | {"AWS_ENDPOINT_URL": proxy.endpoint}
    link.write("a", b"a")
    process = millrace.start("link", "run", "one")
    try:
        within(120, lambda: link.status()["last_sweep"])
        assert link.status()["silent_since"] is None
        proxy.silent = True
        began = time.time()
        link.write("b", b"b")

        def told() -> dict | None:
            shown = json.loads(
                millrace.start("link", "status", "one", "--json").communicate(timeout=20)[0].splitlines()[0]
            )
            return shown if shown["silent_since"] else None

        within(120, told)
        status = told()
        assert status and status["silent_since"] >= int(began)
        assert status["behind_s"] >= time.time() - status["silent_since"] - 2 >= 3
        assert "has not answered since" in millrace("link", "status", "one", status=3).out
        assert link.files() == {"a": b"a", "b": b"b"}
        proxy.silent = False
        within(180, lambda: link.objects() == {"a": b"a", "b": b"b"} and not told())
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        proxy.socket.close()
        if process.poll() is None:
            kill(process)


@pytest.mark.timeout(0)
def test_what_changed_while_the_network_was_away_is_carried(millrace: Millrace, s3: S3, tmp_path: Path):
    """First the server is silent, then it is away, then it is back. An hour of it: MILLRACE_TEST_AWAY_SECONDS=3600."""
    seconds = float(os.environ.get("MILLRACE_TEST_AWAY_SECONDS", "6"))
    address = urllib.parse.urlsplit(s3.endpoint)
    proxy = SilentProxy((address.hostname, address.port))
    link = Linked(millrace, s3, tmp_path, "--import=new,changed,deleted", "--export=new,changed,deleted")
    millrace.env = millrace.env | {"AWS_ENDPOINT_URL": proxy.endpoint}
    link.write("large", b"x" * (20 << 20))
    for name in ("changed", "there", "gone"):
        link.write(name, b"before")
    process = millrace.start("link", "run", "one", "--quiet")
    try:
        within(120, lambda: len(link.objects()) == 4)
        within(60, lambda: link.status()["last_sweep"])
        memory = peak(process.pid)
        for way in ("silent", "away"):
            setattr(proxy, way, True)
            until = time.monotonic() + seconds / 2
            link.write("changed", way.encode() * 100)
            link.write(f"new {way}", b"y" * (9 << 20))
            link.put("there", way.encode())
            (link.directory / "gone").unlink(missing_ok=True)
            while time.monotonic() < until:
                assert process.poll() is None
                time.sleep(min(5, seconds / 10))
            within(120, lambda: told(millrace)["behind_s"] > 0)
            assert (link.directory / "large").exists() and "large" in link.objects(), "nothing is removed meanwhile"
            assert link.objects()["changed"] == b"before"
        proxy.silent = proxy.away = False
        expected = {"large": b"x" * (20 << 20), "changed": b"away" * 100, "there": b"away",
                    "new silent": b"y" * (9 << 20), "new away": b"y" * (9 << 20)}  # fmt: skip
        within(600, lambda: link.objects() == expected and link.files() == expected)
        within(60, lambda: told(millrace)["behind_s"] == 0 and not told(millrace)["problems"])
        assert not told(millrace)["conflicts"]
        assert peak(process.pid) < 2 * memory + 64 * 1024, "what waits does not pile up"
    finally:
        proxy.socket.close()
        if process.poll() is None:
            kill(process)


def told(millrace: Millrace) -> dict:
    out = millrace.start("link", "status", "one", "--json").communicate(timeout=60)[0]
    return json.loads(out.splitlines()[0])


def peak(pid: int) -> int:
    """The most memory that a process has had, in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
