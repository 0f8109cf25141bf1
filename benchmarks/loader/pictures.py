# SPDX-License-Identifier: Apache-2.0
"""Pictures from tars to batches, beside webdataset.

    python benchmarks/loader/pictures.py --pictures 2000 --side 500 --size 224 --rounds 5

Makes tars of JPEG pictures of side x side pixels once, and takes all of them in batches of 64 pictures of size x size, on
one thread each, in a new process a run; runs of the ways alternate. A row is the median of the rounds:

  pictures/s  of the wall time behind the first batch
  CPU         microseconds of user and system time a picture, of all threads
  peak        resident memory of the process at most

The ways: `webdataset` decodes with Pillow and crops with its ImageOps.fit; `millrace` gives the same pixels;
`millrace reduced` decodes at a half, a quarter or an eighth where that is enough, as Pillow's draft() does, which
`webdataset draft` uses. `spdl` decodes and scales whole batches with its FFmpeg, by its own (bicubic) rule, in one
thread of its pipeline; it needs libavdevice and libavfilter, and is left out where the package is missing. Needs the packages webdataset, pillow and numpy.
"""

import argparse
import importlib.util
import io
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

BATCH = 64
WAYS = ("millrace", "webdataset", "spdl", "millrace reduced", "webdataset draft")


def write_tars(folder: pathlib.Path, pictures: int, side: int) -> None:
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(1)
    y, x = np.mgrid[0:side, 0:side]
    for shard in range(4):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for number in range(shard, pictures, 4):
                a, b, c = random.uniform(3, 60, 3)
                pixels = np.stack([np.sin(x / a), np.cos(y / b), np.sin((x + y) / c)], -1) * 100 + 128
                pixels += random.normal(0, 8, pixels.shape)
                out = io.BytesIO()
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=90)
                for name, data in ((f"{number:06d}.jpg", out.getvalue()), (f"{number:06d}.cls", b"%d" % (number % 10))):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def batches(way: str, folder: str, size: int):
    if way.startswith("millrace"):
        import millrace as mr

        fields = {"jpg": mr.image(size=size, reduced=way.endswith("reduced")), "cls": mr.integer()}
        with mr.SampleLoader(
            f"{folder}/{{0..3}}.tar", fields=fields, batch_size=BATCH, epochs=1, num_threads=1
        ) as loader:
            yield from loader
        return
    if way == "spdl":
        yield from spdl_batches(folder, size)
        return
    import numpy as np
    import webdataset as wds
    from PIL import Image, ImageOps

    def picture(data: bytes):
        image = Image.open(io.BytesIO(data))
        if way.endswith("draft"):
            image.draft("RGB", (size, size))
        return np.asarray(ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BILINEAR))

    data = wds.WebDataset(f"{folder}/{{0..3}}.tar", shardshuffle=4).shuffle(1000, seed=1)
    yield from data.map_dict(jpg=picture, cls=int).to_tuple("jpg", "cls").batched(BATCH)


def spdl_batches(folder: str, size: int):
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    def samples():
        for shard in range(4):
            with open(f"{folder}/{shard}.tar", "rb") as file:
                picture = b""
                for name, data in spdl.io.iter_tarfile(file):
                    if name.endswith(".jpg"):
                        picture = bytes(data)
                    else:
                        yield picture, int(bytes(data))

    def decode(rows):
        pictures = spdl.io.load_image_batch([row[0] for row in rows], width=size, height=size)
        return spdl.io.to_numpy(pictures), [row[1] for row in rows]

    pipeline = PipelineBuilder().add_source(samples()).aggregate(BATCH).pipe(decode).add_sink(2).build(num_threads=1)
    with pipeline.auto_stop():
        yield from pipeline


def run(way: str, folder: str, size: int) -> dict[str, float]:
    source = iter(batches(way, folder, size))
    next(source)
    began, used, pictures = time.perf_counter(), os.times(), 0
    for batch in source:
        pictures += len(batch["cls"] if isinstance(batch, dict) else batch[1])
    seconds, now = time.perf_counter() - began, os.times()
    cpu = now.user + now.system - used.user - used.system
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rate": pictures / seconds, "cpu": cpu / pictures * 1e6, "peak": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--side", type=int, default=500)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(args.run, args.folder, args.size)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_tars(pathlib.Path(folder), args.pictures, args.side)
        ways = [way for way in WAYS if way != "spdl" or importlib.util.find_spec("spdl")]
        found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for _ in range(args.rounds):
            for way in ways:
                command = [sys.executable, __file__, "--run", way, "--folder", folder, "--size", str(args.size)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                found[way].append(json.loads(done.stdout.splitlines()[-1]))
    print("| way | pictures/s | CPU us a picture | peak MB |\n|---|---|---|---|")
    for way, runs in found.items():
        rate, cpu, peak = (statistics.median(r[name] for r in runs) for name in ("rate", "cpu", "peak"))
        print(f"| {way} | {rate:,.0f} | {cpu:,.0f} | {peak:,.0f} |")


if __name__ == "__main__":
    main()
