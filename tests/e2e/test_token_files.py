# SPDX-License-Identifier: Apache-2.0
"""Token files as the data scripts of llm.c write them: indexed, loaded, and refused when they are damaged."""

from pathlib import Path

import numpy as np
import pytest
from conftest import Millrace

import millrace as mr

KINDS = {"gpt-2": (20240520, 1, np.uint16, 50256), "llama-3": (20240801, 7, np.uint32, 128000)}


def write_token_file(path: Path, ids: list[int], kind: str) -> None:
    """A head of 256 int32 (magic number, version, how many ids), then the ids."""
    magic, version, dtype, _ = KINDS[kind]
    head = np.zeros(256, np.int32)
    head[:3] = magic, version, len(ids)
    path.write_bytes(head.tobytes() + np.array(ids, dtype).tobytes())


def documents_of(kind: str) -> list[list[int]]:
    """Each begins with the id that the scripts put there."""
    return [[KINDS[kind][3], *range(n * 7 % 400, n * 7 % 400 + n % 9)] for n in range(300)]


def loaded(url: str) -> list[list[int]]:
    with mr.Loader(url, batch_size=1, seq_len=512, shuffle=False, epochs=1) as loader:
        rows = [(batch["input_ids"][0], batch["attention_mask"][0].astype(bool)) for batch in loader]
    return [ids[mask].tolist() for ids, mask in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_the_scripts(millrace: Millrace, tmp_path: Path, kind: str):
    documents = documents_of(kind)
    stream = [i for document in documents for i in document]
    files = []
    for number, begin in enumerate(range(0, len(stream), 611)):  # files end anywhere in a document
        files.append(tmp_path / f"train_{number:06d}.bin")
        write_token_file(files[-1], stream[begin : begin + 611], kind)
    assert len(files) > 2
    not_indexed = pytest.raises(FileNotFoundError, match="millrace shards index")
    with mr.Loader(str(files[0]), batch_size=1, seq_len=8) as loader, not_indexed:
        next(loader)
    report = millrace("shards", "index", *files, "--json")
    assert report.object("index_summary")["built"] == len(files)
    millrace("shards", "check", *files)
    rows = loaded(str(tmp_path / "train_*.bin"))
    assert [i for row in rows for i in row] == stream
    begin = KINDS[kind][3]
    assert all(begin not in row[1:] for row in rows)
    # A document that two files share is two samples.
    assert len(rows) == len(documents) + sum(stream[at] != begin for at in range(611, len(stream), 611))
    rows_of_64 = dict(batch_size=1, seq_len=64, collate="pack", epochs=1, drop_last=False, pad_id=1000)
    with mr.Loader(str(tmp_path / "train_*.bin"), **rows_of_64) as loader:
        packed = np.concatenate([batch["input_ids"].ravel() for batch in loader])
    assert sorted(packed[packed != 1000]) == sorted(stream)


def test_another_id_before_documents(millrace: Millrace, tmp_path: Path):
    file = tmp_path / "x.bin"
    write_token_file(file, [9, 1, 2, 9, 3, 9, 4], "gpt-2")
    assert "--document-start" in millrace.fails("shards", "index", file, status=1)
    millrace("shards", "index", file, "--document-start", 9)
    assert loaded(str(file)) == [[9, 1, 2], [9, 3], [9, 4]]


def test_damage_is_an_error(millrace: Millrace, tmp_path: Path):
    file = tmp_path / "x.bin"
    write_token_file(file, [50256, 1, 2, 50256, 3], "gpt-2")
    good = file.read_bytes()
    for damaged in (good[:-1], good + b"xx", good[:4] + b"\x02" + good[5:], good[:9] + b"\x01" + good[10:]):
        file.write_bytes(damaged)
        assert "x.bin" in millrace.fails("shards", "index", file, status=1)
    file.write_bytes(good)
    millrace("shards", "index", file)
    file.write_bytes(good[:-1] + b"\x09")
    assert "x.bin" in millrace("shards", "check", file, status=3).out
    with mr.Loader(str(file), batch_size=1, seq_len=8, epochs=1) as loader, pytest.raises(mr.CorruptionError):
        for _ in loader:
            pass
