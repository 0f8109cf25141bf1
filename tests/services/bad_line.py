# SPDX-License-Identifier: Apache-2.0
"""A line between a client and a server that flips bits, breaks off and falls silent."""

from __future__ import annotations

import contextlib
import random
import socket
import socketserver
import struct
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

MIB = 1 << 20


class Line:
    """Between a client and the server: `bend` sees each piece that goes to the client or, `up`, to the server."""

    def __init__(self, endpoint: str) -> None:
        self.bend: Callable[[bytes, bool], bytes] = lambda piece, up: piece
        self.flipped = self.broken = 0
        self.resets = False
        server = urlsplit(endpoint)
        line = self

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                other = socket.create_connection((server.hostname, server.port))
                upward = threading.Thread(target=line.pump, args=(self.request, other, True), daemon=True)
                upward.start()
                line.pump(other, self.request, False)
                upward.join()
                other.close()

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self.server = Server(("127.0.0.1", 0), Connection)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"

    def pump(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                target.sendall(self.bend(piece, up))
        for end in (source, target):
            with contextlib.suppress(OSError):
                if self.resets:  # what is closed then is reset
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RD if self.resets else socket.SHUT_RDWR)

    def flip(self, chance: random.Random, wanted_up: bool, times: int) -> None:
        """One bit of `times` pieces that are long, so that they are content and no heads."""

        def bend(piece: bytes, up: bool) -> bytes:
            if up != wanted_up or len(piece) < 30_000 or self.flipped == times or chance.random() < 0.7:
                return piece
            self.flipped += 1
            bent = bytearray(piece)
            bent[chance.randrange(20_000, len(bent))] ^= 1 << chance.randrange(8)
            return bytes(bent)

        self.flipped, self.bend = 0, bend

    def break_off(self, chance: random.Random, resets: bool, least: int = 6 * MIB, most: int = 24 * MIB) -> None:
        """Breaks the connection that carries the last byte of `least` to `most` bytes."""
        left = 0

        def bend(piece: bytes, up: bool) -> bytes:
            nonlocal left
            left -= len(piece)
            if left < 0:
                self.broken += 1
                left = chance.randrange(least, most)
                raise ConnectionResetError
            return piece

        self.broken, self.bend, self.resets = 0, bend, resets

    def fall_silent(self) -> threading.Event:
        """No long piece, content that is, comes down until the event is set."""
        event = threading.Event()

        def bend(piece: bytes, up: bool) -> bytes:
            if not up and len(piece) >= 30_000 and not event.is_set():
                self.broken += 1
                event.wait()
            return piece

        self.broken, self.bend = 0, bend
        return event
