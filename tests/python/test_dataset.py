# SPDX-License-Identifier: Apache-2.0
"""mr.Dataset: the samples of shards by number, beside tarfile."""

import io
import multiprocessing
import pathlib
import pickle
import tarfile

import numpy as np
import pytest

import millrace as mr


def by_tarfile(tars):
    samples = {}
    for path in tars:
        with tarfile.open(path) as tar:
            for member in tar:
                key, field = member.name.split(".", 1)
                samples.setdefault(key, {"__key__": key})[field] = tar.extractfile(member).read()
    return list(samples.values())


def test_each_sample_is_what_tarfile_reads(dataset):
    expected = by_tarfile(dataset.tars)
    samples = mr.Dataset(dataset.tars)
    assert len(samples) == len(expected) > 50
    assert list(samples) == expected
    for number in (len(expected) - 1, 0, -1, np.int64(7)):
        assert samples[number] == expected[number]
    assert samples[3:11:2] == expected[3:11:2]
    assert samples.ids(5).tolist() == np.load(io.BytesIO(expected[5]["token_ids.npy"])).tolist()
    for outside in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError, match=f"of a dataset of {len(expected)}"):
            samples[outside]
    with pytest.raises(TypeError):
        samples["3"]


def test_a_folder_is_the_same_as_its_tars(dataset):
    assert mr.Dataset(str(dataset.shards))[:] == mr.Dataset(dataset.tars)[:]


def test_copies_in_other_processes_open_the_shards_again(dataset):
    samples = mr.Dataset(dataset.tars)
    assert pickle.loads(pickle.dumps(samples))[4] == samples[4]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(samples.__getitem__, range(20)) == samples[:20]


def test_a_map_style_torch_dataset(dataset):
    torch = pytest.importorskip("torch")
    samples = mr.Dataset(dataset.tars)
    loader = torch.utils.data.DataLoader(samples, batch_size=None, sampler=[5, 0, 9], num_workers=1)
    assert [sample["__key__"] for sample in loader] == [samples[i]["__key__"] for i in (5, 0, 9)]


def test_damage_names_shard_and_sample(dataset, tmp_path):
    tar = tmp_path / "damaged.tar"
    data = bytearray(pathlib.Path(dataset.tars[0]).read_bytes())
    index = pathlib.Path(dataset.tars[0] + ".index").read_bytes()
    (tmp_path / "damaged.tar.index").write_bytes(index)
    data[600] ^= 1
    tar.write_bytes(data)
    samples = mr.Dataset(tar)
    with pytest.raises(mr.CorruptionError, match=r"damaged\.tar: sample 0"):
        samples[0]
    assert samples[1] == mr.Dataset(dataset.tars[0])[1]


def test_what_is_no_dataset_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        mr.Dataset(tmp_path / "none.tar")
    with pytest.raises(ValueError, match="no shards"):
        mr.Dataset([])
