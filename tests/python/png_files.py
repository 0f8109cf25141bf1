# SPDX-License-Identifier: Apache-2.0
"""PNG files of every kind, also those that Pillow does not write: any bits a channel, palettes, transparent colours."""

from __future__ import annotations

import struct
import zlib

import numpy as np

#: By the colour type of the header: channels, and bits a channel that it may have.
KINDS = {0: (1, (1, 2, 4, 8, 16)), 2: (3, (8, 16)), 3: (1, (1, 2, 4, 8)), 4: (2, (8, 16)), 6: (4, (8, 16))}


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def random_png(
    generator: np.random.Generator, kind: int, bits: int, height: int, width: int, transparent: bool = False
) -> bytes:
    """Noise. `transparent`: a colour, or alpha of the palette's entries."""
    channels, _ = KINDS[kind]
    entries = int(generator.integers(1, 2**bits + 1)) if kind == 3 else 2**bits
    values = generator.integers(0, entries, (height, width, channels))
    if bits == 16:
        rows = [row.astype(">u2").tobytes() for row in values]
    else:
        places = np.unpackbits(values[..., None].astype(np.uint8), axis=-1)[..., 8 - bits :]
        rows = [np.packbits(row.reshape(-1)).tobytes() for row in places]
    extra = b""
    if kind == 3:
        extra = chunk(b"PLTE", generator.integers(0, 256, 3 * entries).astype(np.uint8).tobytes())
        if transparent:
            known = int(generator.integers(1, entries + 1))
            extra += chunk(b"tRNS", generator.integers(0, 256, known).astype(np.uint8).tobytes())
    elif transparent:
        extra = chunk(b"tRNS", values[0, 0].astype(">u2").tobytes())
    header = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", data) + chunk(b"IEND", b"")
