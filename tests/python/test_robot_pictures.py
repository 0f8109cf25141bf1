# SPDX-License-Identifier: Apache-2.0
"""Pictures inside of data files (features of dtype image), against Pillow and what LeRobot does with them.

LeRobot turns each PIL picture into a tensor by torchvision's ToTensor: float32 [channels, height, width], value / 255.
"""

from __future__ import annotations

import io
import json
import pathlib
import pickle
import random
import shutil
import subprocess

import numpy as np
import pytest

import millrace as mr

pytest.importorskip("av")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
Image = pytest.importorskip("PIL.Image")

from png_files import random_png  # noqa: E402
from robot_sets import BINARY, CAMERAS, Truth, check_equal, make  # noqa: E402

FPS = 30
SIZE = (24, 32)
#: A feature, the picture's format and its mode.
PICTURES = {
    "observation.images.front": ("PNG", "RGB"),
    "observation.images.photo": ("JPEG", "RGB"),
    "observation.images.mask": ("PNG", "L"),
    "observation.images.layers": ("PNG", "RGBA"),
}
WINDOWS = {
    "action": list(range(16)),
    "observation.images.front": [-3, 0, 5],
    "observation.images.mask": [-1, 0],
    "observation.images.wrist": [0],
    "observation.images.photo": [0],
}


def picture(seed: tuple[int, ...], kind: str, mode: str) -> bytes:
    channels = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (*SIZE, channels), np.uint8)
    # JPEG of noise would be all artefacts.
    pixels = np.repeat(np.repeat(pixels[::4, ::4], 4, 0), 4, 1)
    out = io.BytesIO()
    Image.fromarray(pixels[..., 0] if channels == 1 else pixels).save(out, kind)
    return out.getvalue()


def put_pictures(root: pathlib.Path, rows_of_group: int) -> None:
    """The camera `front` becomes pictures in the data files, and more such features come."""
    for path in sorted(root.glob("data/*/*.parquet")):
        table = pq.read_table(path)
        indices = table.column("index").to_pylist()
        for number, (name, (kind, mode)) in enumerate(PICTURES.items()):
            files = [{"bytes": picture((number, i), kind, mode), "path": f"frame-{i:06d}.png"} for i in indices]
            table = table.append_column(
                name, pa.array(files, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
            )
        pq.write_table(table, path, row_group_size=rows_of_group)
    info = json.loads((root / "meta/info.json").read_text())
    for name, (_, mode) in PICTURES.items():
        shape = [*SIZE, len(Image.new(mode, (1, 1)).getbands())]
        info["features"][name] = {"dtype": "image", "shape": shape, "names": ["height", "width", "channels"]}
    (root / "meta/info.json").write_text(json.dumps(info, indent=4))
    for folder in [*root.glob(f"videos/{CAMERAS[0]}"), *root.glob(f"videos/*/{CAMERAS[0]}")]:
        shutil.rmtree(folder)


class PictureTruth(Truth):
    def __init__(self, root: pathlib.Path):
        hidden = {
            name: feature for name, feature in json.loads((root / "meta/info.json").read_text())["features"].items()
        }
        super().__init__(root)
        self.tables = [name for name, feature in hidden.items() if feature["dtype"] == "image"]
        for row in self.rows:
            for name in self.tables:
                pixels = np.array(Image.open(io.BytesIO(row[name]["bytes"])))
                row[name] = np.atleast_3d(pixels).transpose(2, 0, 1)

    def item(self, row: int, windows: dict[str, list[int]]) -> dict:
        item = super().item(row, windows)
        return {name: value.astype(np.uint8) if name in self.tables else value for name, value in item.items()}


@pytest.fixture(scope="module", params=["2.1", "3.0"])
def root(request, tmp_path_factory) -> pathlib.Path:
    folder = make(
        tmp_path_factory.mktemp("pictures") / "set", "--version", request.param, "--episodes", 3, "--codec", "h264"
    )
    # Row groups that cut episodes, and windows, in two.
    put_pictures(folder, 50)
    return folder


@pytest.fixture(scope="module")
def truth(root) -> PictureTruth:
    return PictureTruth(root)


def seconds(windows: dict[str, list[int]]) -> dict[str, list[float]]:
    return {name: [delta / FPS for delta in deltas] for name, deltas in windows.items()}


def test_every_row_is_pillows(root, truth):
    frames = mr.lerobot.Dataset(root)
    assert set(frames.cameras) == {*PICTURES, CAMERAS[1]}
    rows = list(range(len(frames)))
    random.Random(1).shuffle(rows)
    for begin in range(0, len(rows), 48):
        some = rows[begin : begin + 48]
        for row, item in zip(some, frames.__getitems__(some), strict=True):
            check_equal(item, truth.item(row, {}), row)


def test_windows_across_row_groups(root, truth):
    frames = mr.lerobot.Dataset(root, delta_timestamps=seconds(WINDOWS), num_threads=3)
    for _ in range(2):  # the second time row groups are in memory
        rows = random.Random(2).choices(range(len(frames)), k=60)
        for row, item in zip(rows, frames.__getitems__(rows), strict=True):
            check_equal(item, truth.item(row, WINDOWS), row)
    # One time: a picture of a table has its dimension, a frame of a video has none.
    assert item["observation.images.photo"].shape == (1, 3, *SIZE)
    assert item["observation.images.wrist"].ndim == 3
    assert item["observation.images.photo_is_pad"].tolist() == [False]


def test_little_memory_gives_the_same(root, truth):
    frames = pickle.loads(pickle.dumps(mr.lerobot.Dataset(root, memory_bytes=1, delta_timestamps=seconds(WINDOWS))))
    for row in random.Random(3).choices(range(len(frames)), k=12):
        check_equal(frames[row], truth.item(row, WINDOWS), row)


@pytest.mark.parametrize("return_uint8", [False, True])
def test_tensors_are_lerobots(root, truth, return_uint8):
    """float32 of value / 255 even with return_uint8, which is of videos in LeRobot."""
    torch = pytest.importorskip("torch")
    frames = mr.torch.lerobot.Dataset(root, delta_timestamps=seconds(WINDOWS), return_uint8=return_uint8)
    for row in (0, 49, 50, len(frames) - 1):
        item, wanted = frames[row], truth.item(row, WINDOWS)
        assert set(item) == set(wanted)
        for name in truth.tables:
            as_tensor = torch.from_numpy(wanted[name]).to(torch.float32).div(255)
            assert item[name].dtype == torch.float32 and torch.equal(item[name], as_tensor), name
        video = item[CAMERAS[1]]
        assert video.dtype == (torch.uint8 if return_uint8 else torch.float32)
    seen = []
    mr.torch.lerobot.Dataset(root, image_transforms=lambda one: seen.append(one.shape) or one)[3]
    assert len(seen) == len(PICTURES) + 1


def test_cameras_are_left_out(root, truth):
    assert not {*PICTURES, *CAMERAS} & set(mr.lerobot.Dataset(root, cameras=[])[5])
    some = mr.lerobot.Dataset(root, cameras=["observation.images.mask"], delta_timestamps=seconds(WINDOWS))
    assert some.cameras == ["observation.images.mask"]
    item = some[70]
    assert "observation.images.front_is_pad" not in item and "observation.images.front" not in item
    assert np.array_equal(item["observation.images.mask"], truth.item(70, WINDOWS)["observation.images.mask"])
    with pytest.raises(ValueError, match="it has no camera action"):
        mr.lerobot.Dataset(root, cameras=["action"])


def test_sizes_and_layouts(root):
    whole = mr.lerobot.Dataset(root, layout="hwc").batch([3, 60])
    small = mr.lerobot.Dataset(root, layout="hwc", image_size=(20, 20), image_fit="stretch").batch([3, 60])
    floats = mr.lerobot.Dataset(root, pictures="float32").batch([3, 60])
    for name, (_, mode) in PICTURES.items():
        for given, resized, unit in zip(whole[name], small[name], floats[name], strict=True):
            pixels = Image.fromarray(given[..., 0] if mode == "L" else given)
            wanted = np.atleast_3d(np.asarray(pixels.resize((20, 20), Image.Resampling.BILINEAR)))
            if mode != "RGBA":  # Pillow multiplies by alpha first
                assert np.array_equal(resized, wanted), name
            assert np.array_equal(unit, given.transpose(2, 0, 1) / np.float32(255))


def test_a_loader_gives_them(root, truth):
    frames = mr.lerobot.Dataset(root, cameras=["observation.images.front"])
    with mr.lerobot.Loader(frames, batch_size=16, seed=5, epochs=1) as loader:
        batch = next(loader)
        for index, given in zip(batch["index"], batch["observation.images.front"], strict=True):
            assert np.array_equal(given, truth.item(int(index), {})["observation.images.front"])


def test_validate_has_no_error(root):
    told = subprocess.run([BINARY, "lerobot", "validate", root, "--json"], capture_output=True, text=True)
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    errors = [each for each in lines if each.get("severity") == "error" and each["rule"] not in ("LR055",)]
    assert not errors


def broken(root: pathlib.Path, tmp_path: pathlib.Path, change) -> pathlib.Path:
    """A copy in which `change` got the table of the first data file."""
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    path = min(copy.glob("data/*/*.parquet"))
    pq.write_table(change(pq.read_table(path)), path, row_group_size=50)
    return copy


def with_file(name: str, row: int, content: bytes | None):
    def change(table):
        column = table.column(name).to_pylist()
        column[row] = {"bytes": content, "path": "x.png"}
        kind = table.schema.field(name).type
        return table.set_column(table.schema.get_field_index(name), name, pa.array(column, kind))

    return change


def other_size() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "PNG")
    return out.getvalue()


def sixteen_bits() -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full(SIZE, 3000, np.uint16)).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"\x89PNG\r\n\x1a\n", mr.CorruptionError, "a PNG cut off"),
        (picture((0, 0), "PNG", "RGB")[:-30], mr.CorruptionError, "does not decode"),
        (None, mr.CorruptionError, "row 7: it holds no picture"),
        (other_size(), mr.CorruptionError, r"it is 8 x 8 of 3 channels, and the first is 32 x 24 of 3 \[LR031\]"),
        (picture((0, 0), "PNG", "L"), mr.CorruptionError, "of 1 channels"),
        (sixteen_bits(), NotImplementedError, r"a gray PNG of 16 bits, such as of depth.*\.npy"),
        (picture((0, 0), "PNG", "LA"), NotImplementedError, "gray with transparency.*convert"),
        (picture((0, 0), "TIFF", "RGB"), NotImplementedError, "it is TIFF, and PNG and JPEG are read: convert it"),
        (picture((0, 0), "WEBP", "RGB"), NotImplementedError, "it is WebP, and"),
        (b"nothing", mr.CorruptionError, "neither PNG nor JPEG"),
    ],
)
def test_damage_names_the_row(root, tmp_path, content, error, message):
    name = "observation.images.front"
    copy = broken(root, tmp_path, with_file(name, 7, content))
    frames = mr.lerobot.Dataset(copy)
    with pytest.raises(error, match=message) as raised:
        frames[7]
    assert ".parquet" in str(raised.value) and "row 7" in str(raised.value)
    assert frames[60]["index"] == 60
    assert mr.lerobot.Dataset(copy, cameras=[])[7]["index"] == 7


@pytest.mark.parametrize(
    ("kind", "bits", "mode"),
    [(3, 8, "RGB"), (3, 2, "RGB"), (0, 1, "L"), (0, 4, "L"), (2, 16, "RGB"), (6, 16, "RGBA")],
)
def test_other_pngs_are_pillows(root, tmp_path, seeded, kind, bits, mode):
    """A palette becomes its colours, where LeRobot gives the numbers of its entries; of 16 bits the upper 8 stay."""
    name = "observation.images.front"
    generator = np.random.default_rng(seeded.getrandbits(32))

    def change(table):
        files = [random_png(generator, kind, bits, *SIZE, transparent=kind == 3) for _ in range(len(table))]
        column = pa.array([{"bytes": each, "path": "x.png"} for each in files], table.schema.field(name).type)
        return table.set_column(table.schema.get_field_index(name), name, column)

    copy = broken(root, tmp_path, change)
    files = [each["bytes"] for each in pq.read_table(min(copy.glob("data/*/*.parquet")))[name].to_pylist()]
    rows = [0, 3, 11]
    given = mr.lerobot.Dataset(copy, cameras=[name]).batch(rows)[name]
    for row, pixels in zip(rows, given, strict=True):
        wanted = np.atleast_3d(np.asarray(Image.open(io.BytesIO(files[row])).convert(mode))).transpose(2, 0, 1)
        assert np.array_equal(pixels, wanted), row


def test_depth_is_refused_by_name(root, tmp_path):
    shutil.copytree(root, tmp_path / "copy")
    path = tmp_path / "copy/meta/info.json"
    info = json.loads(path.read_text())
    info["features"]["observation.images.mask"]["info"] = {
        "is_depth_map": True,
        "depth_unit": "m",
        "video.depth_min": 0.01,
        "video.depth_max": 10.0,
        "video.shift": 3.5,
        "video.use_log": True,
    }
    path.write_text(json.dumps(info))
    with pytest.raises(NotImplementedError, match=r"observation.images.mask is of depth.*choose others by cameras="):
        mr.lerobot.Dataset(tmp_path / "copy")
    assert len(mr.lerobot.Dataset(tmp_path / "copy", cameras=[CAMERAS[1]]))


def test_column_of_bytes_without_a_struct(root, truth, tmp_path):
    def change(table):
        for name in PICTURES:
            files = [each["bytes"] for each in table.column(name).to_pylist()]
            table = table.set_column(table.schema.get_field_index(name), name, pa.array(files, pa.large_binary()))
        return table

    frames = mr.lerobot.Dataset(broken(root, tmp_path, change))
    check_equal(frames[11], truth.item(11, {}), 11)
