# SPDX-License-Identifier: Apache-2.0
"""Tars of pictures, classes, text and arrays, as people have them."""

import io
import json
import pathlib
import tarfile

import numpy as np
from PIL import Image


def picture(random, height, width, form="JPEG", mode="RGB"):
    """Smooth colours with an edge, in this file format."""
    y, x = np.mgrid[0:height, 0:width]
    a, b, c = random.uniform(1, 9, 3)
    channels = [np.sin(x / a) * 100 + 120, np.cos(y / b) * 100 + 120, (x + y) * c % 256]
    pixels = np.stack(channels, -1).clip(0, 255).astype(np.uint8)
    pixels[height // 3 :, width // 2 :] = 255 - pixels[height // 3 :, width // 2 :]
    out = io.BytesIO()
    options = {"lossless": True} if form == "WEBP" else {"quality": 90} if form == "JPEG" else {}
    Image.fromarray(pixels).convert(mode).save(out, form, **options)
    return out.getvalue()


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(**arrays):
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def write_tar(path: pathlib.Path, members):
    """Members are (name, bytes)."""
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mtime = 1.5  # gives a PAX header, as webdataset's TarWriter does
            tar.addfile(info, io.BytesIO(data))
    return path


def picture_members(random, number):
    form = ("JPEG", "PNG", "WEBP")[number % 3]
    extension = ("jpg", "png", "webp")[number % 3]
    key = f"pictures/{number:05d}"
    height, width = random.integers(20, 90, 2)
    return [
        (f"{key}.{extension}", picture(random, int(height), int(width), form)),
        (f"{key}.cls", b"%d" % (number % 10)),
        (f"{key}.json", json.dumps({"number": number}).encode()),
        (f"{key}.txt", f"picture № {number}".encode()),
        (f"{key}.box.npy", npy(np.full((number % 4, 2), number, np.float32))),
    ]


def picture_tars(folder: pathlib.Path, shards=3, each=17, seed=0):
    random = np.random.default_rng(seed)
    paths = []
    for shard in range(shards):
        members = [m for n in range(each) for m in picture_members(random, shard * each + n)]
        paths.append(str(write_tar(folder / f"{shard:03d}.tar", members)))
    return paths
