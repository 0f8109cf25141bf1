# SPDX-License-Identifier: Apache-2.0
"""mr.WebDataset beside the package webdataset: the same samples from tars of any names and kinds; resume; damage."""

import gzip
import io
import json
import pathlib
import pickle
import random
import tarfile

import numpy as np
import pytest
from sample_tars import npy, npz, picture_tars

import millrace as mr

wds = pytest.importorskip("webdataset", reason="the package webdataset is not installed")


def theirs(urls, *stages):
    data = wds.WebDataset(urls, shardshuffle=False, nodesplitter=None, empty_check=False)
    for name, args, kwargs in stages:
        data = getattr(data, name)(*args, **kwargs)
    return list(data)


def ours(urls, *stages, **options):
    data = mr.WebDataset(urls, **options)
    for name, args, kwargs in stages:
        data = getattr(data, name)(*args, **kwargs)
    with data:
        return list(data)


def stage(name, *args, **kwargs):
    return name, args, kwargs


def same(a, b, tolerance=0):
    assert type(a) is type(b) or (np.isscalar(a) and np.isscalar(b)), (a, b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            same(a[name], b[name], tolerance)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y, tolerance)
    elif isinstance(a, np.ndarray):
        assert a.shape == b.shape and a.dtype == b.dtype
        if a.size:
            assert np.abs(a.astype(float) - b.astype(float)).max() <= tolerance
    else:
        assert a == b


def without_path(samples):
    """__local_path__ is said by webdataset only."""
    return [{name: value for name, value in sample.items() if name != "__local_path__"} for sample in samples]


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    return picture_tars(tmp_path_factory.mktemp("pictures"), shards=3, each=13)


def test_samples_are_bytes_until_they_are_decoded(tars):
    same(ours(tars), without_path(theirs(tars)))


@pytest.mark.parametrize("spec", ["rgb8", "rgb", "l8", "l", "rgba8", "torchrgb8"])
def test_pictures_and_fields_are_decoded_alike(tars, spec):
    mine, others = ours(tars, stage("decode", spec)), without_path(theirs(tars, stage("decode", spec)))
    assert len(mine) == len(others) == 39
    for a, b in zip(mine, others, strict=True):
        for name in a:
            if spec.startswith("torch") and name in ("jpg", "png", "webp"):
                same(a[name].numpy(), b[name].numpy(), 3)
            else:
                # Pillow brings another libjpeg; its gray of a JPEG is made from RGB.
                same(a[name], b[name], 4 if spec.endswith("8") else 4 / 255)


def test_pil(tars):
    for a, b in zip(ours(tars, stage("decode", "pil")), theirs(tars, stage("decode", "pil")), strict=True):
        name = next(n for n in ("jpg", "png", "webp") if n in a)
        assert a[name].size == b[name].size and a[name].mode == b[name].mode


def double(value):
    return value * 2


def shout(sample):
    return {name: value for name, value in sample.items() if name != "box.npy"} | {"txt": sample["txt"].upper()}


CHAINS = [
    [stage("decode"), stage("rename", image="jpg;png;webp", label="cls"), stage("map", shout), stage("batched", 5)],
    [stage("decode"), stage("to_tuple", "jpg;png;webp", "cls"), stage("map_tuple", len, double), stage("batched", 4)],
    [stage("decode"), stage("map_dict", cls=double), stage("rename", keep=False, x="cls", y="txt")],
    [stage("decode"), stage("select", lambda s: s["cls"] % 2 == 0), stage("to_tuple", "__key__ cls json")],
    [stage("decode"), stage("to_tuple", "cls", "txt"), stage("batched", 7, partial=False)],
    [stage("decode"), stage("to_tuple", "cls"), stage("batched", 7, collation_fn=None)],
    [stage("decode"), stage("rename_keys", label="cls", text="*txt", keep_unselected=True), stage("map", dict)],
    [stage("rename", image="jpg;png;webp"), stage("map_dict", image=len)],
]


@pytest.mark.parametrize("number", range(len(CHAINS)))
def test_chains_give_the_same(tars, number):
    chain = CHAINS[number]
    mine, others = ours(tars, *chain), theirs(tars, *chain)
    if others and isinstance(others[0], dict):
        others = without_path(others)
    same(
        [list(x) if isinstance(x, tuple) else x for x in mine], [list(x) if isinstance(x, tuple) else x for x in others]
    )


NAMES = ["a", "b.c", "dir/x", "dir.d/y", "./z", "sp ace", "ü", "x" * 90, "deep/" * 30 + "k", "K", "k"]
FIELDS = {
    "txt": "text ü".encode(), "cls": b"7", "json": b'{"a": [1]}', "npy": npy(np.arange(5.0)), "seg.npy": npy(np.eye(2)),
    "npz": npz(x=np.arange(2)), "bin": b"\0\1", "JPG": b"none", "x.y.id": b" 12 ", "": b"nothing", "empty": b"",
    "z.txt.gz": gzip.compress(b"packed"), "z.npy.gz": gzip.compress(npy(np.arange(3))), "pkl": pickle.dumps(1), "mp": b"\x81\xa1a\x01",
}  # fmt: skip


def random_tar(chance, path, form):
    """Samples with any names and fields, and what is to be passed over."""
    with tarfile.open(path, "w", format=form) as tar:
        for number in range(chance.randint(1, 12)):
            # ustar has room for 100 bytes, or for 155 more before a slash.
            stem = f"{chance.choice([n for n in NAMES if form != tarfile.USTAR_FORMAT or len(n) < 80])}{number}"
            for field in chance.sample(list(FIELDS), chance.randint(1, 5)):
                add(tar, f"{stem}.{field}", FIELDS[field])
            if chance.random() < 0.3:
                kind = chance.choice([tarfile.DIRTYPE, tarfile.SYMTYPE])
                add(tar, f"other{number}.txt", b"", kind)
            if chance.random() < 0.3:
                add(tar, chance.choice(["README", ".hidden", "__meta__/x.txt", "a.d/noext", "__all__"]), b"skipped")


def add(tar, name, data, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.type = kind
    info.linkname = "nowhere" if kind == tarfile.SYMTYPE else ""
    tar.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_any_names_and_kinds(tmp_path, form):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    for number in range(25):
        path = str(tmp_path / f"{number}.tar")
        random_tar(chance, path, form)
        others = without_path(theirs(path))
        mine = ours(path)
        same(sorted(mine, key=lambda s: s["__key__"]), sorted(others, key=lambda s: s["__key__"]))
        decoded, by_them = ours(path, stage("decode")), without_path(theirs(path, stage("decode")))
        for a, b in zip(decoded, by_them, strict=True):
            assert a.keys() == b.keys()
            for name in a:
                if name.split(".")[-1] in ("npz", "pkl"):  # dicts here; webdataset unpickles
                    continue
                same(a[name], b[name])


def test_damage_is_never_silent(tmp_path, tars):
    data = pathlib.Path(tars[0]).read_bytes()
    with tarfile.open(tars[0]) as tar:
        members = tar.getmembers()
    middle = members[len(members) // 2]
    header = middle.offset
    damages = {
        "cut at a member": bytes(data[:header]),
        "cut in a header": bytes(data[: header + 100]),
        "cut in a payload": bytes(data[: middle.offset_data + 1]),
        "no end": bytes(data[: members[-1].offset_data + (members[-1].size + 511) // 512 * 512]),
        "header byte": bytes(data[: middle.offset_data - 400]) + b"\xff" + bytes(data[middle.offset_data - 399 :]),
        "hole": bytes(data[:header]) + bytes(10240) + bytes(data[header:]),
        "two archives": bytes(data) * 2,
        "empty": b"",
        "no tar": b"<html>" * 200,
    }
    for name, damaged in damages.items():
        path = tmp_path / f"{name.replace(' ', '-')}.tar"
        path.write_bytes(damaged)
        with pytest.raises((mr.CorruptionError, ValueError)) as error:
            ours(str(path))
        assert path.name in str(error.value) or "no samples" in str(error.value), name
    twice = tmp_path / "twice.tar"
    with tarfile.open(twice, "w") as tar:
        for field in ("txt", "cls", "TXT"):
            add(tar, f"a.{field}", b"1")
    with pytest.raises(mr.CorruptionError, match="repeats a field"):
        ours(str(twice))


def test_a_sample_that_does_not_decode(tmp_path):
    path = tmp_path / "0.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(9):
            add(tar, f"{number}.cls", b"%d" % number if number != 4 else b"four")
    chain = [stage("decode"), stage("to_tuple", "cls")]
    with pytest.raises(mr.CorruptionError, match="sample 4: cls"):
        ours(str(path), *chain)
    replaced = ours(str(path), stage("decode", handler=wds.ignore_and_continue), stage("to_tuple", "cls"))
    assert len(replaced) == 9 and {c for (c,) in replaced} == set(range(9)) - {4}

    def fails(sample):
        if sample["cls"] == 6:
            raise ValueError("six")
        return sample

    continuing = [
        stage("decode", handler=wds.ignore_and_continue),
        stage("map", fails, handler=wds.ignore_and_continue),
    ]
    assert 6 not in {s["cls"] for s in ours(str(path), *continuing)}
    with pytest.raises(ValueError, match="six"):
        ours(str(path), stage("decode", handler=wds.ignore_and_continue), stage("map", fails))


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_on_other_ranks(tars, batch, workers):
    def chain(rank, world):
        data = mr.WebDataset(tars, seed=3, rank=rank, world_size=world, uneven_ranks=True, workers=workers)
        data = data.shuffle(100).decode().to_tuple("__key__", "cls")
        return data if batch is None else data.batched(batch)

    def keys(value):
        return [value[0]] if batch is None else value[0]

    with chain(0, 1) as alone:
        assert len(alone) == (39 if batch is None else 10)
        whole = [keys(value) for value in alone]
        assert [keys(value) for value in alone] != whole  # the next epoch has another order
    with chain(0, 1) as first:
        values = iter(first)
        begun = [keys(next(values)) for _ in range(5)]
        state = json.loads(json.dumps(first.state_dict()))
    assert begun == whole[:5]
    if batch is not None:
        return  # batches of each rank: another number of ranks has other batches
    with chain(0, 2) as a, chain(1, 2) as b:
        for data in (a, b):
            data.load_state_dict(state)
        rest = {key for data in (a, b) for value in data for key in keys(value)}
    assert rest <= {key for step in whole[5:] for key in step} and len(rest) >= len(whole) - 5 - 1


def test_epochs_lengths_and_arguments(tars, monkeypatch):
    with mr.WebDataset(tars).decode().to_tuple("cls").repeat(2) as data:
        assert len(list(data)) == 78 == len(data)
    with mr.WebDataset(tars).to_tuple("__key__").with_epoch(10) as data:
        assert len(data) == 10
        first, second = list(data), list(data)
        assert len(first) == len(second) == 10 and first[0] != second[0]
    folder = tars[0].rsplit("/", 1)[0]
    monkeypatch.setenv("WDS_PLACE", folder)
    assert len(ours("${PLACE}/{000..001}.tar::${PLACE}/002.tar")) == 39
    with pytest.raises(ValueError, match="WDS_NOWHERE"):
        mr.WebDataset("${NOWHERE}/0.tar")
    with pytest.raises(NotImplementedError, match="resampled"):
        mr.WebDataset(tars, resampled=True)
    with pytest.raises(ValueError, match="not a way to decode"):
        mr.WebDataset(tars).decode("json")
    with pytest.raises(TypeError, match="in order only"):
        mr.WebDataset(tars)[0]


def test_torch(tars):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    data = mr.torch.WebDataset(tars).decode().to_tuple("cls", "txt").batched(5)
    with data:
        cls, text = next(iter(data))
    assert isinstance(cls, torch.Tensor) and cls.tolist() == [0, 1, 2, 3, 4] and isinstance(text[0], str)
    with mr.torch.WebDataset(tars).decode("torchrgb").rename(image="jpg;png;webp") as data:
        image = next(iter(data))["image"]
    assert isinstance(image, torch.Tensor) and image.dtype == torch.float32 and image.shape[0] == 3
