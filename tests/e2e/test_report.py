# SPDX-License-Identifier: Apache-2.0
"""--html: the pages open in a real browser without a network, with their plots, and without an error."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from browser_fixture import Browser
from conftest import Millrace
from test_runs import record

pytest.importorskip("plotly", reason="plotly is not installed (requirements-dev.txt)")


# Of each plot: its width and height on the screen, and how many shapes with an area or a length it draws.
PLOTS = """
return [...document.querySelectorAll('.js-plotly-plot')].map(plot => {
  const box = plot.getBoundingClientRect();
  const shapes = [...plot.querySelectorAll('.trace path, .point path, .points path')].filter(
    shape => shape.getTotalLength() > 1);
  return [box.width, box.height, shapes.length];
});
"""


def check(browser: Browser, page: Path, plots: int) -> str:
    browser.open(page)
    drawn = browser.driver.execute_script(PLOTS)
    assert len(drawn) >= plots, drawn
    assert all(width > 300 and height > 200 and shapes >= 1 for width, height, shapes in drawn), drawn
    assert browser.requests() == [page.as_uri()]
    assert browser.errors() == []
    kept = os.environ.get("MILLRACE_SCREENSHOTS")
    colours = []
    for scheme in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        colours.append(browser.driver.execute_script("return getComputedStyle(document.body).backgroundColor"))
        if kept:
            browser.driver.save_screenshot(str(Path(kept) / f"{page.stem}-{scheme}.png"))
    assert colours == ["rgb(255, 255, 255)", "rgb(18, 18, 18)"], colours
    paper = base64.b64decode(browser.driver.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert paper.startswith(b"%PDF") and len(paper) > 10_000
    text: str = browser.driver.execute_script("return document.body.innerText")
    return text


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return tmp_path / "page.html"


def test_bench(millrace: Millrace, browser: Browser, tmp_path: Path, page: Path):
    small = ["--size", "4MiB", "--files", 20, "--seconds", "100ms", "--rounds", 2, "--ranks", 2]
    done = millrace("bench", "storage", tmp_path, *small, "--html", page)
    assert f"report: {page}" in done.err
    text = check(browser, page, 4)
    assert "millrace bench storage" in text and "best time between checkpoints of 8 GPUs" in text
    assert re.search(r"read random 4 KiB\s+1\s+32\s+4\.1 kB\s+[\d,]+ reads/s", text), text


def test_benches_of_data_of_yours(
    millrace: Millrace, browser: Browser, shards: Path, raw: Path, tokenizer: Path, tmp_path: Path, page: Path
):
    sizes = ["--seq-len", 16, "--batch-size", 2, "--seconds", "100ms"]
    millrace("bench", "loader", shards, *sizes, "--train", 1000, "--html", page)
    text = check(browser, page, 2)
    assert "Training at 1,000 tokens/s would wait" in text and "Where its threads were" in text
    (tmp_path / "near").mkdir()
    (tmp_path / "far").mkdir()
    folders = [tmp_path / "far", "--tier", tmp_path / "near"]
    millrace("bench", "checkpoint", *folders, "--size", "4MB", "--rounds", 1, "--interval", "600s", "--html", page)
    text = check(browser, page, 1)
    assert "Training that saves every 600 s would stand" in text and f"durable in {tmp_path}/near" in text
    millrace("bench", "tokenizer", tokenizer, raw / "a.txt", "--seconds", "100ms", "--threads", 2, "--html", page)
    text = check(browser, page, 1)
    assert "Text a second" in text and re.search(r"^2\s+[\d.]+ [kMG]B/s\s+[\d,.]+ tokens/s", text, re.MULTILINE), text


# The title of each section with a plot, and the range of the plot's x axis.
RANGES = """
return [...document.querySelectorAll('section')].filter(each => each.querySelector('.js-plotly-plot')).map(each =>
  [each.querySelector('h2').textContent, each.querySelector('.js-plotly-plot').layout.xaxis.range]);
"""


def test_a_run_shows_its_loader_and_checkpointer_over_the_time(
    millrace: Millrace, browser: Browser, tmp_path: Path, page: Path
):
    """By the counters that its record has every ten seconds, of two starts, which each count from 0 on."""
    millrace.env["MILLRACE_LEDGER"] = str(tmp_path / "ledger")
    folder = tmp_path / "a"
    folder.mkdir()
    for number, begun in enumerate((1795581830.0, 1795582830.0)):
        lines: list[dict] = [{"type": "start", "format": "millrace-record", "version": 1, "time": begun, "name": "a"}]
        for place in range(1, 7):
            loader = {"batches": 100 * place, "wait_seconds": 3.0 * place, "read_bytes": 5_000_000 * place}
            saver = {"saves": place // 3, "stall_seconds": 0.5 * (place // 3)}
            moment = begun + 10 * place
            lines.append({"type": "counters", "time": moment, "loader": loader, "checkpointer": saver})
            lines.append({"step": 100 * place, "time": moment, "train/loss": 1.0 / place})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"20261125T04435{number}.000000001Z-0a.run.jsonl").write_text(text)
    millrace("runs", "show", folder, "--html", page)
    text = check(browser, page, 6)
    assert "a: checkpoints" in text, "the time line has them"
    assert browser.driver.execute_script(MARKS) >= 4
    ranges = dict(browser.driver.execute_script(RANGES))
    waited, batches = ranges["Time that training waited for batches"], ranges["Batches"]
    assert waited == batches and waited[0] < waited[1], "one time line"


def test_monitor_and_doctor(millrace: Millrace, browser: Browser, tmp_path: Path, page: Path):
    samples = tmp_path / "a.jsonl"
    millrace("monitor", "--every", "10ms", "--samples", 20, "--jsonl", samples, "--html", page)
    assert "Processors: time by mode" in check(browser, page, 2)
    assert "name one" in millrace.fails("monitor", "--html", page, status=2)
    log = tmp_path / "a.log"
    log.write_text("OSError: [Errno 122] Disk quota exceeded: '<img src=x onerror=alert(1)>'\n")
    smi = "timestamp, index, utilization.gpu [%], memory.used [MiB]\n"
    smi += "".join(f"2026/11/25 04:43:{second:02}.000, 0, 3 %, 1024 MiB\n" for second in range(30))
    (tmp_path / "gpu.csv").write_text(smi)
    millrace("doctor", "--logs", log, "--samples", tmp_path / "gpu.csv", "--html", page, status=3)
    text = check(browser, page, 2)
    assert "a quota is used up [DR05]" in text and "<img src=x" in text, "what others wrote is text"
    assert "the GPUs are used little [DR20]" in text and "GPUs: time with a kernel" in text


def test_runs(millrace: Millrace, browser: Browser, tmp_path: Path, page: Path):
    millrace.env["MILLRACE_LEDGER"] = str(tmp_path / "ledger")
    steps = [{"step": step, "time": 1795581830.0 + step, "train/loss": 3.0 / step} for step in range(2, 50)]
    first = record(tmp_path / "a", "a", 0.1, *steps)
    again = (
        '{"type":"start","format":"millrace-record","version":1,"time":1795582830.0,"name":"a","config":{"lr":0.1}}\n'
    )
    again += "".join(json.dumps({"step": step, "time": 1.0, "train/loss": 1.0}) + "\n" for step in range(30, 60))
    (first / "20261125T054350.000000001Z-0b.run.jsonl").write_text(again)
    second = record(tmp_path / "b", "b", 0.2, *steps)
    millrace("runs", "show", first, "--html", page)
    text = check(browser, page, 2)
    assert "Dotted lines: the run went on from an earlier step." in text
    millrace("runs", "diff", first, second, "--html", page)
    assert "config/lr" in check(browser, page, 1)


LANES = """
const names = [...document.querySelector('.js-plotly-plot').querySelectorAll('.ytick text')];
const top = name => name.getBoundingClientRect().top;
return names.sort((a, b) => top(a) - top(b)).map(name => name.textContent);
"""
MARKS = "return document.querySelectorAll('.scatterlayer .point').length"


def test_a_time_line_has_its_lanes_bars_and_marks(browser: Browser, tmp_path: Path, page: Path):
    """As the demo of a cluster writes it; a run that was started twice has its starts there by itself."""
    from millrace.report import write_report

    begin = 1795581830.0
    spans = [("steps", "text goes into a bucket", 0, 9), ("steps", "<b>training", 9, 60), ("faults", "kill -9", 30, 30)]
    about = {"type": "report", "title": "A path", "command": "a", "host": "h", "time": "t", "version": "1"}
    objects = [about] + [
        {"type": "report_span", "lane": lane, "name": name, "begin": begin + first, "end": begin + last}
        for lane, name, first, last in spans
    ]
    steps = [{"step": step, "time": begin + step, "train/loss": 3.0 / step} for step in range(2, 20)]
    folder = record(tmp_path / "a", "a", 0.1, *steps)
    again = {"type": "start", "format": "millrace-record", "version": 1, "time": begin + 40, "name": "a", "config": {}}
    later = [{"step": step, "time": begin + 21 + step, "train/loss": 3.0 / step} for step in range(20, 30)]
    (folder / "20271125T054350.000000001Z-0b.run.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in [again, *later])
    )
    objects.append({"type": "report_input", "kind": "record", "name": "lm", "path": str(folder)})
    source = tmp_path / "objects.jsonl"
    source.write_text("".join(json.dumps(each) + "\n" for each in objects))
    write_report(source, page)
    text = check(browser, page, 2)
    assert "Time line" in text and "<b>training" in text and "start 2, cut off" in text, text
    assert browser.driver.execute_script(LANES) == ["steps", "faults", "lm"]
    assert browser.driver.execute_script(MARKS) >= 1


PICTURES = """
return [...document.querySelectorAll('.strip img')].map(image => {
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  return [image.alt, image.naturalWidth, image.naturalHeight,
          ...context.getImageData(0, 0, image.naturalWidth, image.naturalHeight).data];
});
"""


@pytest.mark.parametrize("version", ["2.1", "3.0"])
def test_robot_dataset(millrace: Millrace, browser: Browser, page: Path, version: str):
    av = pytest.importorskip("av")
    pytest.importorskip("pyarrow")
    millrace("lerobot", "demo", "arm", "--version", version, "--episodes", 3, "--codec", "h264")
    done = millrace("lerobot", "inspect", "arm", "--episode", 1, "--json", "--html", page)
    preview = done.object("lerobot_preview")
    text = check(browser, page, 3)  # the histogram, and a plot of the state and of the action
    assert "Episode 1: observation.state" in text and "Episode 1: action" in text
    assert "Lengths of episodes" in text and done.object("lerobot_inspect")["tasks"][0]["task"] in text
    pictures = browser.driver.execute_script(PICTURES)
    assert len(pictures) == len(preview["frames"]) == 16, "eight of each camera"
    for (name, width, height, *pixels), wanted in zip(pictures, preview["frames"], strict=True):
        assert name.startswith(f"{wanted['camera']}, row {wanted['row']}, ") and (width, height) == (128, 96)
        with av.open(str(millrace.cwd / "arm" / wanted["file"])) as file:
            frames = list(file.decode(video=0))
        decoded = frames[wanted["frame"]].to_ndarray(format="rgb24")
        shown = np.array(pixels, dtype=np.uint8).reshape(height, width, 4)
        assert np.array_equal(shown[:, :, :3], decoded), "the picture of another frame"


def test_pictures_of_a_robot_dataset_come_out_of_a_bucket(millrace: Millrace, s3, page: Path):
    pytest.importorskip("pyarrow")
    millrace("lerobot", "demo", "arm", "--episodes", 2, "--codec", "h264")
    bucket = s3.bucket()
    for path in (millrace.cwd / "arm").rglob("*"):
        if path.is_file():
            s3.client.put_object(Bucket=bucket, Key=str(path.relative_to(millrace.cwd)), Body=path.read_bytes())
    env = {name: value for name, value in s3.env.items() if "ENDPOINT" not in name}
    here = millrace.cwd / "here.html"
    millrace("lerobot", "inspect", "arm", "--html", here)
    millrace("lerobot", "inspect", f"s3://{bucket}/arm", "--html", page, "--endpoint-url", s3.endpoint, env=env)
    pictures = [re.findall(r"<img alt='[^']*' src='[^']*'", path.read_text()) for path in (here, page)]
    assert len(pictures[0]) == 16 and pictures[0] == pictures[1]


def test_a_robot_dataset_that_is_damaged_has_a_page(millrace: Millrace, browser: Browser, page: Path):
    pytest.importorskip("pyarrow")
    millrace("lerobot", "demo", "arm", "--version", "2.1", "--episodes", 2, "--codec", "h264")
    root = millrace.cwd / "arm"
    (root / "videos/chunk-000/observation.images.front/episode_000000.mp4").write_bytes(b"no video")
    (root / "videos/chunk-000/observation.images.wrist/episode_000000.mp4").unlink()
    (root / "data/chunk-000/episode_000000.parquet").write_bytes(b"PAR1 cut")
    tasks = root / "meta/tasks.jsonl"
    tasks.write_text(tasks.read_text().replace("reach", "<img src=x onerror=alert(1)>"))
    millrace("lerobot", "inspect", "arm", "--html", page)
    text = check(browser, page, 1)
    assert "observation.images.front: " in text and "observation.images.wrist: there is no video of episode 0" in text
    assert "data/chunk-000/episode_000000.parquet: " in text
    assert browser.driver.execute_script(PICTURES) == []


def test_without_plotly_the_verb_says_what_to_install(millrace: Millrace, tmp_path: Path, page: Path):
    folder = record(tmp_path / "a", "a", 0.1)
    fake = tmp_path / "python"
    blocked = "import sys; sys.modules['plotly'] = None; sys.argv = sys.argv[2:]; import runpy; "
    blocked += "runpy.run_module('millrace.report', run_name='__main__', alter_sys=True)"
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{blocked}" "$@"\n')
    fake.chmod(0o755)
    env = {"MILLRACE_PYTHON": str(fake), "MILLRACE_LEDGER": str(tmp_path / "ledger")}
    done = millrace("runs", "show", folder, "--html", page, status=1, env=env)
    assert "final loss" in done.out, "the text is there all the same"
    assert "pip install 'millrace-io[report]'" in done.err
    assert not page.exists() and list(tmp_path.glob("page.html*")) == []
    none = {"MILLRACE_PYTHON": str(tmp_path / "none"), "MILLRACE_LEDGER": str(tmp_path / "ledger")}
    assert "none" in millrace("runs", "show", folder, "--html", page, status=1, env=none).err
