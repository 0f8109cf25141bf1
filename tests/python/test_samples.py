# SPDX-License-Identifier: Apache-2.0
"""mr.SampleLoader: pictures beside Pillow, all kinds of fields, order, states, damage."""

import io
import json
import os
import pickle
import random
import subprocess
import sys
import tarfile

import numpy as np
import pytest
from PIL import Image, ImageOps
from png_files import KINDS, random_png
from sample_tars import npy, npz, picture, picture_tars, write_tar

import millrace as mr

PICTURE = "jpg;png;webp"


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    return picture_tars(tmp_path_factory.mktemp("pictures"))


def files(tars):
    """Bytes of each member by its name."""
    found = {}
    for path in tars:
        with tarfile.open(path) as tar:
            found.update({member.name: tar.extractfile(member).read() for member in tar})
    return found


def by_pillow(data, mode="RGB"):
    return Image.open(io.BytesIO(data)).convert(mode)


def picture_of(members, key):
    return next(members[f"{key}.{e}"] for e in ("jpg", "png", "webp") if f"{key}.{e}" in members)


def test_fields_are_what_python_reads(tars):
    members = files(tars)
    fields = {
        "image": mr.image(PICTURE, size=(24, 32)),
        "cls": ...,
        "meta": "json",
        "txt": mr.text(),
        "box": mr.array("box.npy", batch="pad", pad_value=-1),
    }
    seen = set()
    with mr.SampleLoader(tars, fields=fields, batch_size=8, epochs=1, drop_last=False) as loader:
        assert len(loader) == 7
        for batch in loader:
            assert set(batch) == {"__key__", "image", "cls", "meta", "txt", "box", "box_lengths"}
            assert batch["image"].shape[1:] == (24, 32, 3) and batch["image"].dtype == np.uint8
            assert batch["cls"].dtype == np.int64
            for row, key in enumerate(batch["__key__"]):
                number = int(key[-5:])
                seen.add(number)
                assert batch["cls"][row] == number % 10
                assert batch["meta"][row] == {"number": number}
                assert batch["txt"][row] == f"picture № {number}"
                assert batch["box_lengths"][row] == number % 4
                assert (batch["box"][row][: number % 4] == number).all() and (
                    batch["box"][row][number % 4 :] == -1
                ).all()
                expected = ImageOps.fit(by_pillow(picture_of(members, key)), (32, 24), Image.Resampling.BILINEAR)
                # Its libjpeg is another version than ours, which rounds otherwise.
                assert np.abs(batch["image"][row].astype(int) - np.asarray(expected)).max() <= 3
    assert seen == set(range(51))


@pytest.mark.parametrize("fit", ["crop", "stretch", "pad"])
@pytest.mark.parametrize("form", ["png", "webp"])
@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_pixels_are_pillows(tmp_path, fit, form, mode):
    generator = np.random.default_rng(3)
    shapes = [(40, 60), (61, 33), (16, 16), (100, 7), (5, 90), (128, 128)]
    write_tar(tmp_path / "0.tar", [(f"{n}.{form}", picture(generator, *s, form.upper())) for n, s in enumerate(shapes)])
    members = files([tmp_path / "0.tar"])
    fields = {form: mr.image(size=(32, 48), fit=fit, mode=mode)}
    with mr.SampleLoader(tmp_path, fields=fields, batch_size=6, shuffle=False, epochs=1) as loader:
        (batch,) = loader
    for row, key in enumerate(batch["__key__"]):
        pillow = by_pillow(members[f"{key}.{form}"], "L" if mode == "gray" else "RGB")
        bilinear = Image.Resampling.BILINEAR
        if fit == "crop":
            expected = ImageOps.fit(pillow, (48, 32), bilinear)
        elif fit == "pad":
            expected = ImageOps.pad(pillow, (48, 32), bilinear)
        else:
            expected = pillow.resize((48, 32), bilinear)
        assert np.array_equal(batch[form][row], np.asarray(expected)), (key, fit)


def test_colours_layouts_and_sizes(tmp_path):
    generator = np.random.default_rng(4)
    kinds = {
        "gray.png": picture(generator, 20, 30, "PNG", "L"), "palette.png": picture(generator, 20, 30, "PNG", "P"),
        "alpha.png": picture(generator, 20, 30, "PNG", "RGBA"), "bits.png": picture(generator, 20, 30, "PNG", "1"),
        "gray.jpg": picture(generator, 20, 30, "JPEG", "L"), "cmyk.jpg": picture(generator, 20, 30, "JPEG", "CMYK"),
        "colour.jpg": picture(generator, 20, 30, "JPEG"),
    }  # fmt: skip
    write_tar(tmp_path / "0.tar", [(f"{n}.img", data) for n, data in enumerate(kinds.values())])

    def read(**options):
        fields = {"img": mr.image(**options)}
        with mr.SampleLoader(tmp_path, fields=fields, batch_size=7, shuffle=False, epochs=1) as loader:
            return next(loader)["img"]

    pictures = read()
    for (name, data), pixels in zip(kinds.items(), pictures, strict=True):
        limit = 3 if name.endswith("jpg") else 0
        assert np.abs(pixels.astype(int) - np.asarray(by_pillow(data))).max() <= limit, name
    for data, pixels in zip(kinds.values(), read(mode="rgba"), strict=True):
        assert np.abs(pixels.astype(int) - np.asarray(by_pillow(data, "RGBA"))).max() <= 3
    whole = read(size=16)
    assert whole.shape == (7, 16, 16, 3)
    assert np.array_equal(read(size=16, layout="chw"), whole.transpose(0, 3, 1, 2))
    floats = read(size=16, dtype="float32")
    assert floats.dtype == np.float32 and np.array_equal(floats, whole.astype(np.float32) / 255)
    assert read(size=16, mode="gray").shape == (7, 16, 16)
    assert read(size=16, mode="gray", layout="chw").shape == (7, 1, 16, 16)


@pytest.mark.parametrize("mode", ["rgb", "rgba", "gray"])
def test_every_kind_of_png_is_pillows(tmp_path, seeded, mode):
    generator = np.random.default_rng(seeded.getrandbits(32))
    pictures = []
    for kind, (_, depths) in KINDS.items():
        for bits in depths:
            # Pillow holds a transparent colour of fewer or more bits against pixels of 8.
            may_be_transparent = kind == 3 or (kind in (0, 2) and bits == 8)
            for transparent in [False, True] if may_be_transparent else [False]:
                if (kind, bits) != (0, 16):
                    pictures.append((kind, bits, transparent))
    shapes = [tuple(generator.integers(1, 40, 2)) for _ in pictures]
    pngs = [random_png(generator, k, b, *shape, t) for (k, b, t), shape in zip(pictures, shapes, strict=True)]
    write_tar(tmp_path / "0.tar", [(f"{n:03}.png", data) for n, data in enumerate(pngs)])
    fields = {"png": mr.image(mode=mode)}
    with mr.SampleLoader(tmp_path, fields=fields, batch_size=len(pngs), shuffle=False, epochs=1) as loader:
        given = next(loader)["png"]
    pillow = {"rgb": "RGB", "rgba": "RGBA", "gray": "L"}[mode]
    for what, data, pixels in zip(pictures, pngs, given, strict=True):
        assert np.array_equal(pixels, np.asarray(by_pillow(data, pillow))), what


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("deep", r"a gray PNG of 16 bits, such as of depth.*\.npy"),
        ("TIFF", "it is TIFF, and JPEG, PNG and WebP are decoded: convert it"),
        ("GIF", "it is GIF, and"),
        ("BMP", "it is BMP, and"),
    ],
)
def test_pictures_that_are_not_decoded_are_named(tmp_path, kind, message):
    generator = np.random.default_rng(6)
    data = random_png(generator, 0, 16, 9, 7) if kind == "deep" else picture(generator, 9, 7, kind)
    good = picture(generator, 9, 7, "PNG")
    write_tar(tmp_path / "0.tar", [(f"{n}.png", data if n == 3 else good) for n in range(6)])
    fields = {"png": mr.image(size=8)}
    with (
        mr.SampleLoader(tmp_path, fields=fields, batch_size=6, shuffle=False, epochs=1) as loader,
        pytest.raises(NotImplementedError, match=message) as raised,
    ):
        next(loader)
    assert "0.tar" in str(raised.value) and "3" in str(raised.value)


def test_reduced_pictures_are_nearly_the_same(tmp_path):
    generator = np.random.default_rng(5)
    write_tar(tmp_path / "0.tar", [("0.jpg", picture(generator, 400, 300))])
    images = []
    for reduced in (False, True):
        fields = {"jpg": mr.image(size=64, reduced=reduced)}
        with mr.SampleLoader(tmp_path, fields=fields, batch_size=1, epochs=1) as loader:
            images.append(next(loader)["jpg"].astype(int))
    assert 0 < np.abs(images[0] - images[1]).mean() < 8


def test_every_kind_of_field(tmp_path):
    msgpack = pytest.importorskip("msgpack")
    times = np.array(["2026-11-25", "1970-01-01"], "M8[D]")
    fortran = np.asfortranarray(np.arange(24).reshape(2, 3, 4).astype(">f8"))
    members = []
    for n in range(3):
        members += [
            (f"{n}.a.npy", npy(np.asfortranarray((fortran + n).astype(">f8")))), (f"{n}.t.npy", npy(times)), (f"{n}.scalar.npy", npy(np.float16(n))),
            (f"{n}.s.npy", npy(np.array(["ab", "c"]))), (f"{n}.ids.u16", np.arange(n, dtype="<u2").tobytes()),
            (f"{n}.grid", np.arange(6, dtype="<i4").tobytes()), (f"{n}.mp", msgpack.packb({"n": n})),
            (f"{n}.npz", npz(x=np.arange(n))), (f"{n}.bin", b"\0raw"), (f"{n}.pkl", b"never unpickled"),
        ]  # fmt: skip
    write_tar(tmp_path / "0.tar", members)
    fields = {
        "a": mr.array("a.npy"), "t": mr.array("t.npy"), "scalar": mr.array("scalar.npy"), "s": mr.array("s.npy"),
        "ids": mr.raw(np.uint16, of="ids.u16", batch="pad", length=4, pad_value=7), "grid": mr.raw("<i4", (2, -1)),
        "mp": ..., "npz": ..., "bin": ..., "pkl": ..., "gone": mr.text("nothing.txt", optional=True),
    }  # fmt: skip
    with mr.SampleLoader(tmp_path, fields=fields, batch_size=3, shuffle=False, epochs=1) as loader:
        (batch,) = loader
    assert batch["a"].dtype == np.dtype(">f8") and np.array_equal(batch["a"], [fortran, fortran + 1, fortran + 2])
    assert np.array_equal(batch["t"], [times] * 3) and batch["t"].dtype == times.dtype
    assert batch["scalar"].tolist() == [0, 1, 2] and batch["scalar"].dtype == np.float16
    assert batch["s"].tolist() == [["ab", "c"]] * 3
    assert batch["ids"].tolist() == [[7, 7, 7, 7], [0, 7, 7, 7], [0, 1, 7, 7]]
    assert batch["ids_lengths"].tolist() == [0, 1, 2]
    assert batch["grid"].shape == (3, 2, 3)
    assert batch["mp"] == [{"n": n} for n in range(3)]
    assert [v["x"].tolist() for v in batch["npz"]] == [[], [0], [0, 1]]
    assert batch["bin"] == [b"\0raw"] * 3 and batch["pkl"] == [b"never unpickled"] * 3
    assert batch["gone"] == [None] * 3
    with mr.SampleLoader(tmp_path, batch_size=3, shuffle=False, epochs=1) as loader:
        (everything,) = loader
    assert set(everything) == {"__key__", *{name.split(".", 1)[1] for name, _ in members}}
    assert everything["mp"] == batch["mp"] and everything["ids.u16"][2] == b"\0\0\1\0"


def test_text_is_tokenised_on_the_way(dataset, tmp_path):
    texts = ["It is a truth", "", "universally acknowledged, that a single man"]
    write_tar(tmp_path / "0.tar", [(f"{n}.txt", text.encode()) for n, text in enumerate(texts)])
    tokenizer = mr.Tokenizer.from_file(str(dataset.tokenizer))
    for given in (tokenizer, dataset.tokenizer):
        fields = {"ids": mr.tokens(given, "txt", pad_id=5, length=6), "txt": ...}
        with mr.SampleLoader(tmp_path, fields=fields, batch_size=3, shuffle=False, epochs=1) as loader:
            batch = next(loader)
        for row, text in enumerate(texts):
            ids = list(tokenizer.encode(text))[:6]
            assert batch["ids"][row].tolist() == ids + [5] * (6 - len(ids))
            assert batch["ids_lengths"][row] == len(ids)
            assert batch["txt"][row] == text


def steps(tars, world, state=None, count=None, **arguments):
    """The keys of each step over all ranks, and the state behind them."""
    loaders = [mr.SampleLoader(tars, rank=r, world_size=world, uneven_ranks=True, **arguments) for r in range(world)]
    found = []
    try:
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        while count is None or len(found) < count:
            batches = [next(loader, None) for loader in loaders]
            if batches[0] is None:
                assert not any(batches)
                break
            found.append(sorted(key for batch in batches for key in batch["__key__"]))
        states = [loader.state_dict() for loader in loaders]
        # What a rank has quarantined is its own affair.
        alike = {json.dumps({k: v for k, v in state.items() if k != "quarantined"}) for state in states}
        assert len(alike) == 1
        return found, json.loads(json.dumps(states[0]))
    finally:
        for loader in loaders:
            loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_on_other_ranks_is_exact(tars, workers):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(4):
        arguments = dict(
            fields=["cls"], global_batch_size=chance.randint(3, 12), seed=chance.randrange(99), epochs=2,
            workers=workers, map=(lambda sample: sample) if workers else None,
        )  # fmt: skip
        whole, _ = steps(tars, 1, **arguments)
        parts, state = [], None
        for count in (chance.randint(0, 4), chance.randint(1, 4), None):
            part, state = steps(tars, chance.randint(1, 5), state, count, **arguments)
            parts += part
        assert parts == whole


def flip(sample, rng):
    return {"__key__": sample["__key__"], "double": sample["cls"] * 2, "noise": rng.random()}


def total(batch):
    return {**batch, "total": batch["double"].sum()}


@pytest.mark.parametrize("workers, kind", [(0, "thread"), (3, "thread"), (2, "process")])
def test_functions_change_neither_order_nor_state(tars, workers, kind):
    arguments = dict(fields=["cls"], global_batch_size=6, epochs=1, seed=4)
    with mr.SampleLoader(tars, **arguments) as plain:
        expected = [(batch["__key__"], batch["cls"].tolist()) for batch in plain]
    arguments |= dict(map=flip, map_batch=total, workers=workers, worker_kind=kind)
    with mr.SampleLoader(tars, **arguments) as loader:
        batches, states = [], []
        for batch in loader:
            batches.append(batch)
            states.append(loader.state_dict())
    assert [(b["__key__"], (b["double"] // 2).tolist()) for b in batches] == expected
    assert all(b["total"] == b["double"].sum() for b in batches)
    noise = {key: value for b in batches for key, value in zip(b["__key__"], b["noise"], strict=True)}
    with mr.SampleLoader(tars, rank=1, world_size=2, **arguments) as loader:
        loader.load_state_dict(states[2])
        rest = list(loader)
        assert len(rest) == len(expected) - 3
        for batch, (keys, _) in zip(rest, expected[3:], strict=True):
            assert set(batch["__key__"]) < set(keys)
            assert all(noise[k] == v for k, v in zip(batch["__key__"], batch["noise"], strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_that_fails_is_called_again(tars, workers):
    failing = {"pictures/00007"}

    def work(sample):
        if sample["__key__"] in failing:
            raise ZeroDivisionError("no")
        return sample

    arguments = dict(fields=["cls"], batch_size=5, shuffle=False, epochs=1, map=work, workers=workers)
    with mr.SampleLoader(tars, **arguments) as loader:
        first = next(loader)
        state = loader.state_dict()
        for _ in range(2):
            with pytest.raises(ZeroDivisionError) as error:
                next(loader)
            assert "sample pictures/00007" in str(error.value.__notes__)
            assert loader.state_dict() == state
        failing.clear()
        rest = list(loader)
    assert [k for b in [first, *rest] for k in b["__key__"]] == [f"pictures/{n:05d}" for n in range(50)]
    with (
        mr.SampleLoader(tars, fields=["cls"], batch_size=5, map=lambda sample: None) as loader,
        pytest.raises(TypeError, match="it gives a dict"),
    ):
        next(loader)


def test_pictures_of_any_size_go_through_a_function(tars):
    def crop(sample):
        return {"__key__": sample["__key__"], "image": sample["image"][:20, :20]}

    with mr.SampleLoader(tars, fields={"image": mr.image(PICTURE)}, batch_size=8, map=crop, epochs=1) as loader:
        assert next(loader)["image"].shape == (8, 20, 20, 3)
    with mr.SampleLoader(tars, fields={"image": mr.image(PICTURE)}, batch_size=8, epochs=1) as loader:
        pictures = next(loader)["image"]
        assert isinstance(pictures, list) and len({p.shape for p in pictures}) > 1


@pytest.fixture
def damaged(tmp_path):
    """Two samples whose picture does not decode, one without a class."""
    paths = picture_tars(tmp_path, shards=2, each=20)
    with tarfile.open(paths[0]) as tar:
        members = [(m.name, tar.extractfile(m).read()) for m in tar]
    for place, (name, data) in enumerate(members):
        if name in ("pictures/00003.jpg", "pictures/00012.jpg"):
            members[place] = (name, data[: len(data) // 2])
    members = [m for m in members if m[0] != "pictures/00008.cls"]
    write_tar(tmp_path / "000.tar", members)
    return paths


def test_a_picture_that_does_not_decode_is_named(damaged):
    arguments = dict(fields={"x": mr.image(PICTURE, size=8), "cls": ...}, batch_size=4, epochs=1, shuffle=False)
    with mr.SampleLoader(damaged, **arguments) as loader:
        with pytest.raises(mr.CorruptionError, match=r"000.tar: sample pictures/00003: jpg: this JPEG does not decode"):
            next(loader)
        assert loader.state_dict()["position"] == 0


def test_others_take_the_place_of_what_does_not_decode(damaged):
    arguments = dict(
        fields={"x": mr.image(PICTURE, size=8), "cls": ...}, global_batch_size=5, epochs=2, on_bad="quarantine"
    )
    whole, _ = steps(damaged, 1, **arguments)
    assert len(whole) == 16
    used = {key for step in whole for key in step}
    assert len(used) == 37 and not used & {"pictures/00003", "pictures/00012", "pictures/00008"}
    for world in (2, 3):
        assert steps(damaged, world, **arguments)[0] == whole
    with mr.SampleLoader(damaged, **arguments) as loader:
        assert len(list(loader)) == 16
        reasons = [row.reason for row in loader.quarantined()]
    assert len(reasons) == 6 and sum("has no field cls" in reason for reason in reasons) == 2


REFUSED = {"pictures/00003", "pictures/00012", "pictures/00031"}


def picky(sample):
    if sample["__key__"] in REFUSED:
        raise ValueError("not this one")
    return {**sample, "double": 2 * sample["cls"]}


def refuse_all(sample):
    raise ZeroDivisionError(f"of {sample['__key__']}")


@pytest.mark.parametrize("workers, kind", [(0, "thread"), (3, "thread"), (2, "process")])
def test_others_take_the_place_of_what_a_function_refuses(tars, workers, kind):
    arguments = dict(fields=["cls"], global_batch_size=5, epochs=2, seed=1)
    with mr.SampleLoader(tars, **arguments) as loader:
        asked = [batch["__key__"] for batch in loader]
    arguments |= dict(map=picky, on_bad="quarantine", workers=workers, worker_kind=kind)
    with mr.SampleLoader(tars, **arguments) as loader:
        given, states = [], []
        for batch in loader:
            assert set(batch) == {"__key__", "cls", "double"} and (batch["double"] == 2 * batch["cls"]).all()
            given.append(batch["__key__"])
            states.append(json.loads(json.dumps(loader.state_dict())))
        reasons = [row.reason for row in loader.quarantined()]
    assert len(given) == len(asked) == 20 and all(len(keys) == 5 for keys in given)
    for new, old in zip(given, asked, strict=True):
        assert all((a == b) != (b in REFUSED) for a, b in zip(new, old, strict=True)) and not set(new) & REFUSED
    assert sorted(reasons) == sorted(f"sample {key}: map(): ValueError: not this one" for key in REFUSED for _ in "12")
    # The same at another world size, from the start and behind any state.
    for start in (None, 6):
        ranks = []
        for rank in range(5):
            with mr.SampleLoader(tars, rank=rank, world_size=5, **arguments) as loader:
                if start is not None:
                    loader.load_state_dict(states[start])
                ranks.append([key for batch in loader for key in batch["__key__"]])
            if workers:
                break  # one rank is enough to see it
        wanted = given if start is None else given[start + 1 :]
        for step, keys in enumerate(wanted):
            assert {keys_of_rank[step] for keys_of_rank in ranks} <= set(keys)
            assert workers or sorted(keys_of_rank[step] for keys_of_rank in ranks) == sorted(keys)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_that_refuses_too_much_ends_the_run(tars, workers):
    arguments = dict(fields=["cls"], batch_size=5, epochs=1, on_bad="quarantine", workers=workers)
    with mr.SampleLoader(tars, map=refuse_all, max_bad=7, **arguments) as loader:
        for _ in range(2):
            with pytest.raises(
                mr.CorruptionError, match=r"max_bad is 7; the newest: sample pictures/\d+: map\(\): Zero"
            ):
                next(loader)
            assert loader.state_dict()["position"] == 0
    # A name that cannot be imported is a mistake of the program, and what map() must not give is one too.
    with (
        mr.SampleLoader(tars, map=lambda sample: None, **arguments) as loader,
        pytest.raises(TypeError, match="a dict"),
    ):
        next(loader)


def test_json_and_npz_are_checked_before_they_are_parsed(tmp_path):
    members = []
    for n in range(12):
        members += [(f"{n}.json", b'{"n": %d}' % n), (f"{n}.npz", npz(x=np.arange(n)))]
    members[8] = ("4.json", b'{"n": ')
    members[13] = ("6.npz", members[13][1][:60] + b"\0\1" + members[13][1][62:])
    members[2] = ("1.json", b'{"n": 1, "x": [NaN, -Infinity]}')
    write_tar(tmp_path / "0.tar", members)
    for fields in (["json", "npz"], None):
        with (
            mr.SampleLoader(tmp_path, fields=fields, batch_size=12, shuffle=False) as loader,
            pytest.raises(mr.CorruptionError, match="sample 4: json: no JSON"),
        ):
            next(loader)
        arguments = dict(fields=fields, batch_size=12, epochs=1, on_bad="quarantine")
        with mr.SampleLoader(tmp_path, **arguments) as loader:
            (batch,) = loader
            assert len(loader.quarantined()) == 2
        assert not {"4", "6"} & set(batch["__key__"]) and len(batch["json"]) == 12


def test_arguments_are_checked(tars, tmp_path):
    with pytest.raises(TypeError, match="fields is a list of names"):
        mr.SampleLoader(tars, fields="jpg", batch_size=2)
    with pytest.raises(TypeError, match=r"not an mr\.image"):
        mr.SampleLoader(tars, fields={"jpg": 3}, batch_size=2)
    with pytest.raises(ValueError, match="two sides above 0"):
        mr.image(size=(0, 3))
    with pytest.raises(ValueError, match="worker_kind"):
        mr.SampleLoader(tars, batch_size=2, worker_kind="fiber")
    with pytest.raises(ValueError, match="fit is 'crop', 'stretch' or 'pad'"):
        mr.SampleLoader(tars, fields={"jpg": mr.image(fit="bend", size=3)}, batch_size=2)
    with (
        mr.SampleLoader(tars, fields={"box": mr.array("box.npy")}, batch_size=8) as loader,
        pytest.raises(ValueError, match="batch='pad' or batch='list'"),
    ):
        next(loader)


COUNT = """
import sys, millrace as mr
with mr.SampleLoader(sys.argv[1:], fields=["cls"], batch_size=8, epochs=1) as loader:
    print(sum(len(batch["cls"]) for batch in loader), loader.stats()["read_bytes"])
"""


def test_one_process_of_a_node_reads_a_tar_for_its_index(tmp_path):
    tars = picture_tars(tmp_path, shards=3, each=20)
    (tmp_path / "indexes").mkdir(mode=0o700)
    environment = {**os.environ, "MILLRACE_INDEX_FOLDER": str(tmp_path / "indexes")}
    command = [sys.executable, "-c", COUNT, *tars]
    ranks = [subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True) for _ in range(4)]
    outputs = [rank.communicate(timeout=60) for rank in ranks]
    assert [out.split()[0] for out, _ in outputs] == ["56"] * 4
    assert len(list((tmp_path / "indexes").glob("*.index"))) == 3
    assert not list((tmp_path / "indexes").glob("*.lock"))
    picture_tars(tmp_path, shards=1, each=28, seed=5)  # another shard of that name
    (out,) = [subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60).stdout]
    assert out.split()[0] == "64"
    assert len(list((tmp_path / "indexes").glob("*.index"))) == 4


def test_pickle_passes_and_mixtures(tars, tmp_path):
    with mr.SampleLoader(tars, fields=["cls"], batch_size=8, epochs=1) as loader:
        first, second = ([b["__key__"] for b in loader] for _ in range(2))
        assert first != second and len(first) == len(second) == 6
        with pickle.loads(pickle.dumps(loader)) as copy:
            assert [b["__key__"] for b in copy] == first
        assert loader.provenance(0)[0][0][0].shard in tars
    other = picture_tars(tmp_path, shards=1, each=30, seed=9)
    sources = [mr.Source(tars, weight=3), mr.Source(other, weight=1)]
    with mr.SampleLoader(sources, fields=["cls"], batch_size=8, carry_source=True) as loader:
        counts = sum(np.bincount(next(loader)["source"], minlength=2) for _ in range(10))
        assert counts.tolist() == [60, 20]


def test_evaluation_has_every_sample_once(tars):
    keys = []
    for rank in range(4):
        arguments = dict(fields=["cls", "txt"], batch_size=4, epochs=1, fill_last="pad", rank=rank, world_size=4)
        with mr.SampleLoader(tars, map=lambda sample: sample, **arguments) as loader:
            batches = list(loader)
        assert len(batches) == 4
        for batch in batches:
            assert len(batch["cls"]) == len(batch["txt"]) == len(batch["row_mask"]) == 4
            keys += [key for key, real in zip(batch["__key__"], batch["row_mask"], strict=True) if real]
    assert len(keys) == len(set(keys)) == 51
