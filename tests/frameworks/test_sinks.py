# SPDX-License-Identifier: Apache-2.0
"""Values of `mr.Run` in the real W&B (offline) and MLflow, read back by their own readers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import millrace as mr


def record(folder: Path, sink: str) -> None:
    with mr.Run(folder, name="first", config={"lr": 0.5, "model": {"layers": 4}}, sinks=[sink]) as run:
        run.log(1, loss=3.0)
        run.log(300, {"valid/loss": 1.5}, loss=2.0)


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """Of a log of LevelDB (doc/log_format.md there), whose first 7 bytes are W&B's: blocks of 32 KiB, in them parts with
    checksum, length and type (1 whole, 2 first, 3 middle, 4 last)."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # too little for a part: zeros
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield whole
            whole = b""


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb", reason="wandb is not installed (./dev check frameworks)")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    record(tmp_path, "wandb")
    (path,) = tmp_path.rglob("run-*.wandb")
    rows, config, name = [], {}, ""
    for data in leveldb_records(path.read_bytes()):
        each = wandb_internal_pb2.Record()
        each.ParseFromString(data)
        if each.WhichOneof("record_type") == "history":
            rows.append({item.key or "/".join(item.nested_key): item.value_json for item in each.history.item})
        elif each.WhichOneof("record_type") == "run":
            name = each.run.display_name
            config |= {item.key: item.value_json for item in each.run.config.update}
    assert name == "first" and config["lr"] == "0.5"
    assert [float(row["train/loss"]) for row in rows] == [3.0, 2.0]
    assert [int(row["_step"]) for row in rows] == [1, 300]
    assert float(rows[1]["valid/loss"]) == 1.5 and "system/cpu_mem_%" in rows[1]


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed (./dev check frameworks)")
    # A folder is the one store that needs no server and no SQLAlchemy.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    record(tmp_path / "run", "mlflow")
    client = mlflow.tracking.MlflowClient()
    (run,) = client.search_runs(["0"])
    assert run.info.run_name == "first" and run.info.status == "FINISHED"
    assert run.data.params["lr"] == "0.5"
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(each.step, each.value) for each in history] == [(1, 3.0), (300, 2.0)]
    assert "system/cpu_mem_percent" in run.data.metrics
