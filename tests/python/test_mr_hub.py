# SPDX-License-Identifier: Apache-2.0
"""hf:// through the package: files, listings, loaders, downloads."""

import pathlib

import numpy as np
import pytest

import millrace as mr


@pytest.fixture
def at_hub(hub, monkeypatch):
    for name, value in hub.env.items():
        monkeypatch.setenv(name, value)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    return hub


def test_files_are_read_and_listed(at_hub):
    content = bytes(range(256)) * 40_000
    repo = at_hub.add("org/name", {"a.txt": b"text\n", "b/c.bin": content})
    with mr.open(f"{repo.url}/b/c.bin") as file:
        assert file.read(10) == content[:10]
        file.seek(-5, 2)
        assert file.read() == content[-5:]
    with mr.open(f"{repo.url}/b/c.bin", buffering=0) as file:
        assert file.read_ranges([0, 9_000_000], [3, 4]) == [content[:3], content[9_000_000:9_000_004]]
    assert mr.open(f"{repo.url}/a.txt", "r").read() == "text\n"
    assert [entry["path"] for entry in mr.ls(repo.url, recursive=True)] == ["a.txt", "b/c.bin"]


def test_errors_are_those_of_files(at_hub):
    at_hub.add("org/gated", {"a.txt": b"x"}, gated=True)
    with pytest.raises(FileNotFoundError, match="no dataset of that name"):
        list(mr.ls("hf://datasets/org/missing"))
    with pytest.raises(PermissionError, match="ask for it at"):
        mr.open("hf://datasets/org/gated/a.txt").read()
    with pytest.raises(ValueError, match="ORG/NAME"):
        mr.open("hf://datasets/org")


def test_a_loader_gives_the_batches_of_the_files(at_hub, dataset):
    files = {str(p.relative_to(dataset.shards)): p.read_bytes() for p in dataset.shards.rglob("*") if p.is_file()}
    repo = at_hub.add("org/shards", files)

    def batches(shards):
        with mr.Loader(shards, batch_size=8, seq_len=64, collate="pack", shuffle=True, seed=3) as loader:
            return [batch["input_ids"].copy() for _, batch in zip(range(5), loader, strict=False)]

    for here, there in zip(batches(str(dataset.shards)), batches(repo.url), strict=True):
        assert np.array_equal(here, there)


def test_a_dataset_is_downloaded(at_hub, tmp_path: pathlib.Path):
    files = {"meta/info.json": b'{"codebase_version": "v3.0"}', "data/chunk-000/file-000.parquet": b"rows"}
    repo = at_hub.add("lerobot/pusht", files)
    repo.tags["v3.0"] = repo.branches["main"]
    planned = mr.lerobot.download("pusht", out=tmp_path / "to", dry_run=True)
    assert planned["copied_files"] == 2 and not (tmp_path / "to").exists()
    got = mr.lerobot.download("pusht", out=tmp_path / "to", include=["meta/"])
    assert got["revision"] == "v3.0" and got["commit"] == repo.tags["v3.0"] and got["copied_files"] == 1
    assert mr.lerobot.download("pusht", out=tmp_path / "to")["skipped_files"] == 1
    assert {p: (tmp_path / "to" / p).read_bytes() for p in files} == files
    repo.commit(files | {"data/chunk-000/file-000.parquet": b"other"})
    with pytest.raises(FileExistsError, match="replace"):
        mr.lerobot.download("pusht", out=tmp_path / "to", revision="main")
    with pytest.raises(FileNotFoundError, match="take lerobot/pusht"):
        mr.lerobot.download("pusht_sim", out=tmp_path / "no")
