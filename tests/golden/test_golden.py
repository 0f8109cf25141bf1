# SPDX-License-Identifier: Apache-2.0
"""Today's code reads the files of every version that was released, and says a clear word of files of a newer one.

A folder here is what make.py wrote with the version of its name. docs/compatibility.md has the policy. Block hashes have
their bytes in formats/block_hashes_test.cpp, the record of a sync in sync/record_test.cpp. The cache of a node is not kept:
it is made again from the data.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import millrace as mr

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.iterdir() if path.is_dir() and re.fullmatch(r"[0-9.]+", path.name))
LINES = ["the first document", "another one", "naïve café", "a fourth with more words in it", "five"]
NEWER = re.compile("newer Millrace|a later one")


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy, as some readers write beside what they read."""
    return Path(shutil.copytree(HERE / request.param, tmp_path / "golden"))


@pytest.fixture
def run(binary: str, golden: Path, tmp_path: Path) -> Callable[..., str]:
    """The command in that folder. Returns what it said; fails unless it ends with `status`."""
    # No Slurm has a word in this.
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, does in (("squeue", "true"), ("sacct", "exit 1"), ("scontrol", "exit 1")):
        (tools / name).write_text(f"#!/bin/sh\n{does}\n")
        (tools / name).chmod(0o755)
    places = {"MILLRACE_LEDGER": str(golden / "ledger"), "MILLRACE_LINKS": str(golden / "links"), "HOME": str(tmp_path)}
    places["PATH"] = f"{tools}:{os.environ['PATH']}"

    def call(*arguments: str, status: int = 0) -> str:
        env = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")} | places
        done = subprocess.run([binary, *arguments], cwd=golden, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == status, (arguments, done)
        return done.stdout + done.stderr

    return call


def ids_of_lines() -> list[bytes]:
    return [line.encode() for line in LINES]


@pytest.mark.parametrize("kind", ["tar", "blocks", "megatron", "tokens"])
def test_prepared_folders(golden: Path, run: Callable[..., str], kind: str):
    assert "no damage found" in run("shards", "check", kind)
    assert '"samples":5' in run("shards", "ls", kind, "--json").replace(" ", "")
    data = mr.Dataset(golden / kind)
    found = {len(data.ids(i)) for i in range(len(data))}
    assert found == {len(line) + 1 for line in ids_of_lines()}, "a byte an id, and the end"


@pytest.mark.parametrize("name", ["loader", "mixture"])
def test_states_go_on_with_the_same_batch(golden: Path, name: str):
    stored = json.loads((golden / f"{name}_state.json").read_text())
    shards: Any = golden / "tar"
    arguments: dict[str, Any] = dict(global_batch_size=2, seq_len=8, collate="pack", seed=5)
    if name == "mixture":
        shards = [mr.Source(golden / "tar", weight=2), mr.Source(golden / "blocks")]
    else:
        arguments["epochs"] = 2
    with mr.Loader(shards, **arguments) as loader:
        loader.load_state_dict(stored["state"])
        assert next(loader)["input_ids"].tolist() == stored["next"]
        newer = json.loads(re.sub(r'("version": )1\b', r"\g<1>2", json.dumps(stored["state"])))
        assert newer != stored["state"]
        with pytest.raises(NotImplementedError, match=NEWER):
            loader.load_state_dict(newer)


def test_checkpoints(golden: Path, run: Callable[..., str]):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    assert "no damage found" in run("ckpt", "verify", "checkpoint")
    into = {"model": {"numbers": torch.zeros(2, 3), "halves": torch.zeros(3, dtype=torch.bfloat16)}, "step": 0}
    with mr.torch.Checkpointer(golden / "checkpoint") as checkpointer:
        assert checkpointer.restore(into) == 7
    assert into["model"]["numbers"].tolist() == [[0, 1, 2], [3, 4, 5]] and into["step"] == 7
    assert into["model"]["halves"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", ["checkpoint_line", "checkpoint_folders"])
def test_checkpoints_with_a_line_and_of_version_2(golden: Path, run: Callable[..., str], name: str):
    """Step 20 of the attempt that went back is the newest, and continues 10."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    versions = {"checkpoint_line": 1, "checkpoint_folders": 2}
    manifest = json.loads((golden / name / "step-000000000020/manifest.json").read_text())
    assert manifest["version"] == versions[name] and manifest["line"] == [{"attempt": "r0000-a", "step": 10}]
    assert sealed_checkpoint(json.dumps(manifest)) == (golden / name / "step-000000000020/manifest.json").read_text()
    assert "no damage found" in run("ckpt", "verify", name)
    listed = [json.loads(line) for line in run("ckpt", "ls", name, "--json").splitlines()]
    left = {each["step"]: each["left_behind"] for each in listed}
    assert left == ({10: False, 20: False, 30: True} if name == "checkpoint_line" else {20: False})
    with mr.torch.Checkpointer(golden / name) as checkpointer:
        assert checkpointer.latest_step() == 20
    run("ckpt", "export", name, "w.safetensors", "--format", "safetensors", "--entry", "")
    from safetensors.torch import load_file

    assert torch.equal(load_file(golden / "w.safetensors")["w"], torch.full((4, 2), 21.0))


def test_checkpoints_that_refer_to_earlier_ones(golden: Path, run: Callable[..., str]):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    folder = golden / "checkpoint_shared"
    text = (folder / "step-000000000002/manifest.json").read_text()
    manifest = json.loads(text)
    assert manifest["version"] == 3 and manifest["bases"] == [{"attempt": "r0000-a", "step": 1}]
    assert sealed_checkpoint(text) == text
    record = json.loads((folder / "step-000000000002/r0000-a/part-00001-of-00002.json").read_text())
    assert [each["step"] for each in record["sources"]] == [1]
    assert "no damage found" in run("ckpt", "verify", "checkpoint_shared", "--all")
    run("ckpt", "export", "checkpoint_shared", "w.safetensors", "--format", "safetensors", "--entry", "")
    from safetensors.torch import load_file

    tensors = load_file(golden / "w.safetensors")
    assert torch.equal(tensors["base"], torch.full((4, 256), 0.5))
    assert tensors["adapter"].tolist() == [[2, 2], [2, 2], [12, 12], [12, 12]]


def test_packed_episodes(golden: Path):
    episodes = mr.episodes.open(golden / "episodes.mrpack")
    assert len(episodes) == 2
    assert [np.asarray(each["joint"]).tolist() for each in episodes] == [[0, 0.5, 1], [1, 1.5, 2]]


def test_records_and_the_ledger(golden: Path, run: Callable[..., str]):
    shown = json.loads(run("runs", "show", "record", "--json").splitlines()[0])
    assert shown["status"] == "completed" and shown["steps"] == 2
    assert "a note" in run("runs", "show", "record")
    assert "pretrain" in run("job", "ls", "--all", "--all-users")
    assert "COMPLETED" in run("job", "show", "1234")


def test_links(golden: Path, run: Callable[..., str], tmp_path: Path):
    """Its files are found again: nothing is carried a second time, and what is new is."""
    declared = golden / "links/golden/link.json"
    declared.write_text(declared.read_text().replace("/GOLDEN", str(tmp_path)))
    facts = json.loads(declared.read_text())
    for folder in ("bucket", "directory"):
        (tmp_path / folder).mkdir()
        for name, text in (("here", "from the directory\n"), ("there", "from the bucket\n")):
            (tmp_path / folder / f"{name}.txt").write_text(text)
    (tmp_path / "directory/.millrace").mkdir()
    marker = {"format": "millrace-link", "version": 1} | {key: facts[key] for key in ("name", "id", "url")}
    (tmp_path / "directory/.millrace/link.json").write_text(json.dumps(marker))
    assert "golden" in run("link", "status", "--json")
    (tmp_path / "bucket/new.txt").write_text("new\n")
    run("link", "run", "golden", "--once")
    assert (tmp_path / "directory/new.txt").read_text() == "new\n"
    assert (tmp_path / "directory/there.txt").read_text() == "from the bucket\n"


# Newer versions.


def sealed(text: str) -> str:
    """A manifest or part of prepare with its checksum, by docs/format/manifest.md."""
    body = json.loads(text)
    del body["checksum"]
    plain = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return json.dumps(body | {"checksum": xxhash.xxh3_128_hexdigest(plain.encode())}, indent=2)


def sealed_checkpoint(text: str) -> str:
    """A document of a checkpoint with its checksum, by docs/format/checkpoint.md."""
    body = json.loads(text)
    del body["checksum"]
    options: dict[str, Any] = dict(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    checksum = xxhash.xxh3_128_hexdigest(json.dumps(body, **options).encode())
    return json.dumps(body | {"checksum": checksum}, **options)


def raise_version(file: Path, seal: Callable[[str], str] = lambda text: text) -> None:
    if file.suffix in (".json", ".jsonl"):
        text = file.read_text()
        first, rest = text.split("\n", 1) if file.suffix == ".jsonl" else (text, "")
        newer, count = re.subn(r'("version": ?)1\b', r"\g<1>9", first)
        assert count >= 1
        file.write_text(seal(newer) + ("\n" + rest if rest else ""))
        return
    data = bytearray(file.read_bytes())
    assert struct.unpack_from("<I", data, 8) == (1,)
    struct.pack_into("<I", data, 8, 2)
    file.write_bytes(data)


def test_sealing_is_right(golden: Path):
    for name in ("manifest.json", "part-00000-of-00002.json", "prepare.json"):
        text = (golden / "tar" / name).read_text()
        if "checksum" in json.loads(text):
            assert json.loads(sealed(text)) == json.loads(text)
    manifest = (golden / "checkpoint/step-000000000007/manifest.json").read_text()
    assert sealed_checkpoint(manifest) == manifest


def test_newer_manifests_and_indexes(golden: Path, run: Callable[..., str]):
    raise_version(golden / "tar/00000.tar.index")
    assert NEWER.search(run("shards", "index", "tar/00000.tar", status=1))
    raise_version(golden / "blocks/manifest.json", sealed)
    assert NEWER.search(run("shards", "ls", "blocks", status=1))
    (golden / "megatron/manifest.json").unlink()
    raise_version(golden / "megatron/part-00001-of-00002.json", sealed)
    assert NEWER.search(run("prepare", "--finish", "megatron", status=1))


def test_newer_checkpoints_are_neither_used_nor_removed(golden: Path, run: Callable[..., str]):
    manifest = golden / "checkpoint/step-000000000007/manifest.json"
    raise_version(manifest, sealed_checkpoint)
    assert NEWER.search(run("ckpt", "verify", "checkpoint", status=3))
    run("ckpt", "prune", "checkpoint", "--keep-last", "1")
    assert manifest.exists()


def test_newer_episodes(golden: Path):
    raise_version(golden / "episodes.mrpack")
    with pytest.raises(NotImplementedError, match=NEWER):
        mr.episodes.open(golden / "episodes.mrpack")


def test_newer_records_and_runs(golden: Path, run: Callable[..., str]):
    (lines,) = (golden / "record").glob("*.run.jsonl")
    raise_version(lines)
    assert NEWER.search(run("runs", "show", "record", status=1))
    assert NEWER.search(run("runs", "ls", "record"))
    (submitted,) = (golden / "ledger").rglob("*.run.json")
    raise_version(submitted)
    assert NEWER.search(run("job", "ls", "--all", "--all-users"))


def test_newer_links(golden: Path, run: Callable[..., str]):
    raise_version(golden / "links/golden/link.json")
    assert NEWER.search(run("link", "status", "golden", status=1))
