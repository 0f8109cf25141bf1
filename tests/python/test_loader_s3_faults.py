# SPDX-License-Identifier: Apache-2.0
"""Epochs from a real S3 server over a line that breaks, with and without the cache of the node."""

from __future__ import annotations

import hashlib
import os
import pathlib
import random

import pytest
from bad_line import Line

import millrace as mr


def digest(shards, **options) -> str:
    options = dict(global_batch_size=6, seq_len=64, collate="pack", seed=4, epochs=2, num_threads=2) | options
    with mr.Loader(shards, **options) as loader:
        return hashlib.md5(b"".join(batch["input_ids"].tobytes() for batch in loader)).hexdigest()


@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
def test_an_epoch_over_a_line_that_breaks_is_that_of_a_disk(s3, bucket, dataset, tmp_path, monkeypatch, resets):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    line = Line(s3.endpoint)
    for name, value in (s3.env | {"AWS_ENDPOINT_URL": line.endpoint}).items():
        monkeypatch.setenv(name, value)
    for tar in dataset.tars:
        for path in map(pathlib.Path, (tar, f"{tar}.index")):
            s3.client.put_object(Bucket=bucket, Key=path.name, Body=path.read_bytes())
    shards = [f"s3://{bucket}/{os.path.basename(tar)}" for tar in dataset.tars]
    expected = digest(dataset.tars)
    try:
        for cache in ({}, {"cache": str(tmp_path / "cache"), "cache_bytes": "64MB"}):
            line.break_off(random.Random(1), resets, least=500_000, most=2_500_000)
            assert digest(shards, **cache) == expected
            assert line.broken > 1
    finally:
        line.server.shutdown()
        line.server.server_close()
