# SPDX-License-Identifier: Apache-2.0
"""millrace runs on records as docs/format/run.md describes them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from conftest import Millrace


def record(folder: Path, name: str, lr: float, *more: dict) -> Path:
    folder.mkdir(parents=True)
    start = {"type": "start", "format": "millrace-record", "version": 1, "time": 1795581830.0, "name": name,
             "world_size": 4, "gpus": 8, "job_id": "17", "config": {"lr": lr, "batch_size": 8}}  # fmt: skip
    lines = [start, {"step": 1, "time": 1795581831.0, "train/loss": 2.0, "train/step": 1}, *more]
    (folder / "20261125T044350.000000001Z-0a.run.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return folder


@pytest.fixture
def folder(millrace: Millrace, tmp_path: Path) -> Path:
    millrace.env["MILLRACE_LEDGER"] = str(tmp_path / "ledger")
    counters = {"type": "counters", "time": 1795585430.0, "loader": {"tokens": 3600, "wait_seconds": 2.5}}
    record(tmp_path / "runs/a", "a", 0.1, counters, {"type": "end", "time": 1795585430.0, "status": "completed"})
    record(tmp_path / "runs/b", "b", 0.2)
    return tmp_path / "runs"


def test_the_table_and_one_run(millrace: Millrace, folder: Path):
    listed = millrace("runs", "ls", folder)
    assert [line.split()[1] for line in listed.out.splitlines()] == ["run", "a", "b"]
    assert "completed" in listed.out and "running or killed" in listed.out
    (a, b) = millrace("runs", "ls", folder, "--json").objects("training_run")
    assert (a["status"], b["status"], a["steps"], a["final_loss"]) == ("completed", None, 1, 2.0)
    shown = millrace("runs", "show", folder / "a", "--json", "--price", 2).object("training_run")
    assert (shown["tokens_per_s"], shown["data_wait_s"], shown["cost_usd"]) == (4.0, 2.5, 16.0)
    text = millrace("runs", "show", folder / "a", "--price", 2).out
    assert "cost             16.00 USD for 8.0 GPU hours\n" in text and "final loss       2.0000\n" in text


def test_notes_differences_and_exports(millrace: Millrace, folder: Path):
    millrace("runs", "note", folder / "a", "a baseline", "--json").object("run_note")
    assert "a baseline" in millrace("runs", "show", folder / "a").out
    differences = millrace("runs", "diff", folder / "a", folder / "b", "--json").objects("run_difference")
    assert [(each["what"], each["left"], each["right"]) for each in differences] == [("config/lr", "0.1", "0.2")]
    assert "differ in no setting" in millrace("runs", "diff", folder / "a", folder / "a").out
    assert millrace("runs", "export", folder / "a").out == "step,train/loss,train/step\n1,2,1\n"
    assert millrace("runs", "export", folder / "a", "--json").object("run_export")["path"] is None


def test_what_was_submitted_is_compared_too(millrace: Millrace, folder: Path, tmp_path: Path):
    month = tmp_path / "ledger/2026-11"
    month.mkdir(parents=True)
    data = [{"url": "/fsx/shards", "kind": "shards", "manifest_hash": "0" * 32}]
    run = {"format": "millrace-run", "version": 1, "name": "a", "job_id": "17", "submitted": 1795581800, "data": data}
    (month / "20261125T044320Z-17-0a.run.json").write_text(json.dumps(run))
    shown = millrace("runs", "show", folder / "a", "--json").object("training_run")
    assert shown["facts"]["submitted"]["data"] == data
    cost = millrace("runs", "show", folder / "a", "--instance", "p5e.48xlarge", "--json").object("training_run")
    assert cost["cost_usd"] > 8
    assert "no price of none" in millrace.fails("runs", "show", folder / "a", "--instance", "none")
    assert "--price" in millrace.fails("runs", "show", folder / "a", "--price", "-3", status=2)


def test_names_of_values_are_cells_of_csv(millrace: Millrace, tmp_path: Path):
    names = ["loss, train", 'the "best"', "two\nlines"]
    record(tmp_path / "a", "a", 0.1, {"step": 2, "time": 1795581832.0} | {name: 0.5 for name in names})
    rows = list(csv.reader(io.StringIO(millrace("runs", "export", tmp_path / "a").out, newline="")))
    assert set(rows[0]) == {"step", "train/loss", "train/step", *names}
    assert [len(row) for row in rows] == [6, 6, 6] and rows[2][0] == "2"


def test_what_is_no_run_is_said(millrace: Millrace, folder: Path):
    assert "holds no record of a training" in millrace.fails("runs", "show", folder)
    assert "neither a folder with a record nor a run" in millrace.fails("runs", "show", "none")
    assert "tensorboard needs a folder" in millrace.fails("runs", "export", "a", "--to", "tensorboard", status=2)
    assert "no runs" in millrace("runs", "ls").err
