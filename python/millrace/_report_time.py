# SPDX-License-Identifier: Apache-2.0
"""Shows on a page what runs and nodes did over time, from the records of runs and the samples of the monitor."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable
from pathlib import Path

from millrace._report_page import Curve, Object, Page, moment_of, table


def read_record(folder: str) -> tuple[dict[str, Curve], list[int]]:
    """Reads values by name over steps, and the steps at which a later start continued (docs/format/run.md)."""
    values: dict[str, dict[int, float]] = {}
    starts: list[int] = []
    for number, path in enumerate(sorted(Path(folder).glob("*.run.jsonl"))):
        first = None
        for line in path.read_text(errors="replace").splitlines():
            try:
                each = json.loads(line)
            except ValueError:
                continue
            if not isinstance(each, dict) or not isinstance(each.get("step"), int):
                continue
            step = each["step"]
            if first is None:
                first = step
                if number:
                    starts.append(step)
                    for known in values.values():
                        for later in [known_step for known_step in known if known_step >= step]:
                            del known[later]
            for name, value in each.items():
                if name not in ("step", "time") and isinstance(value, (int, float)):
                    values.setdefault(name, {})[step] = float(value)
    return {name: (sorted(known), [known[step] for step in sorted(known)]) for name, known in values.items()}, starts


def read_counters(folder: str) -> list[tuple[float, Object]]:
    """Reads the lines with the numbers of the loader and the checkpointer: the time, and values by name
    ("loader/batches"). Each start counts from 0 and begins with an empty line."""
    lines: list[tuple[float, Object]] = []
    for path in sorted(Path(folder).glob("*.run.jsonl")):
        for line in path.read_text(errors="replace").splitlines():
            try:
                each = json.loads(line)
            except ValueError:
                continue
            if not isinstance(each, dict) or not isinstance(each.get("time"), (int, float)):
                continue
            if each.get("type") == "start":
                lines.append((float(each["time"]), {}))
            elif each.get("type") == "counters":
                values = {
                    f"{part}/{name}": float(value)
                    for part in ("loader", "checkpointer")
                    for name, value in (each.get(part) or {}).items()
                    if isinstance(value, (int, float))
                }
                lines.append((float(each["time"]), values))
    return lines


def saves_of(name: str, folder: str) -> list[Object]:
    """Returns marks of a time line: the checkpoints that were saved between two lines of counters."""
    marks: list[Object] = []
    before: Object = {}
    for moment, values in read_counters(folder):
        taken = values.get("checkpointer/saves", 0) - before.get("checkpointer/saves", 0)
        if values and taken > 0:
            stop = values.get("checkpointer/stall_seconds", 0) - before.get("checkpointer/stall_seconds", 0)
            what = f"{taken:.0f} checkpoint{'s' if taken > 1 else ''}, which kept training for {stop:.2f} s"
            marks.append({"lane": f"{name}: checkpoints", "name": what, "begin": moment, "end": moment})
        before = values
    return marks


def read_starts(name: str, folder: str) -> list[Object]:
    """Reads the starts of a run as spans of a time line, each with how it ended."""
    spans = []
    for number, path in enumerate(sorted(Path(folder).glob("*.run.jsonl")), 1):
        times, ended = [], "cut off"
        for line in path.read_text(errors="replace").splitlines():
            try:
                each = json.loads(line)
            except ValueError:
                continue
            if isinstance(each, dict) and isinstance(each.get("time"), (int, float)):
                times.append(float(each["time"]))
                ended = str(each.get("status", "failed")) if each.get("type") == "end" else ended
        if times:
            spans.append({"lane": name, "name": f"start {number}, {ended}", "begin": min(times), "end": max(times)})
    return spans


def add_time_line(page: Page, objects: list[Object]) -> None:
    """Adds a time line of "report_span" objects, and of runs if one was started more than once or saved checkpoints."""
    spans = [each for each in objects if each["type"] == "report_span"]
    runs = [each for each in objects if each["type"] == "report_input" and each["kind"] == "record"]
    starts = [span for each in runs for span in read_starts(each["name"], each["path"])]
    saves = [mark for each in runs for mark in saves_of(each["name"], each["path"])]
    if spans or saves or len(starts) > len(runs):
        page.section("Time line", page.time_line(spans + starts + saves))


def add_records(page: Page, objects: list[Object]) -> None:
    runs = [each for each in objects if each["type"] == "report_input" and each["kind"] == "record"]
    if not runs:
        return
    read = {each["name"]: read_record(each["path"]) for each in runs}
    names = dict.fromkeys(name for curves, _ in read.values() for name in curves if name != "train/step")
    marks = [place for _, starts in read.values() for place in starts] if len(read) == 1 else []
    note = "<p class=about>Dotted lines: the run went on from an earlier step.</p>" if marks else ""
    for name in sorted(names, key=lambda each: ("loss" not in each, each)):
        curves = {run: curves[name] for run, (curves, _) in read.items() if name in curves}
        page.section(name, page.curves(curves, name, "step", marks), note)


# Each entry: title, unit, beginning of the series' names, factor, and whether a counter becomes a rate.
_PLOTS: list[tuple[str, str, str, float, bool]] = [
    ("GPUs: time with a kernel", "%", r"millrace_gpu_busy_ratio\b", 100, False),
    ("GPUs: memory in use", "GB", r"millrace_gpu_memory_(used|size)_bytes\b", 1e-9, False),
    ("GPUs: power", "W", r"millrace_gpu_power_watts\b", 1, False),
    ("GPUs: clock", "MHz", r"millrace_gpu_sm_clock_hertz\b", 1e-6, False),
    ("GPUs: temperature", "C", r"millrace_gpu_temperature_celsius\b", 1, False),
    ("Processors: time by mode", "processors", r"millrace_node_cpu_seconds_total\b", 1, True),
    ("Memory: available, and the job's with its limit", "GB", r"millrace_(node_memory_bytes.*available|cgroup_memory)", 1e-9, False),
    ("Time that some or all tasks waited", "%", r"millrace_node_pressure_seconds_total\b", 100, True),
    ("Disks", "MB/s", r"millrace_disk_(read|written)_bytes_total\b", 1e-6, True),
    ("File systems of the network", "MB/s", r"millrace_(nfs|lustre)_(read|written)_bytes_total\b", 1e-6, True),
    ("Network", "MB/s", r"millrace_(network|rdma)_(receive|transmit)_bytes_total\b", 1e-6, True),
    ("Training: time that it waited for batches", "%", r"millrace_training_waiting_ratio\b", 100, False),
    ("Training: batches", "batches/s", r"millrace_(training|process)_batches_total\b", 1, True),
    ("Training: tokens", "tokens/s", r"millrace_training_tokens_total\b", 1, True),
    ("Training: batches that were ready", "batches", r"millrace_(training|process)_queue_batches\b", 1, False),
    ("Training: time that checkpoints kept it", "%", r"millrace_training_stall_seconds_total\b", 100, True),
    ("Training: data read, checkpoints written", "MB/s", r"millrace_training_(read|written)_bytes_total\b", 1e-6, True),
    ("Training: checkpoints that are not durable yet", "GB", r"millrace_training_unwritten_bytes\b", 1e-9, False),
    ("Links: age of the oldest change that waits", "s", r"millrace_link_behind_seconds\b", 1, False),
]  # fmt: skip

# The same for the counters of a record: title, unit, names, factor.
_COUNTED: list[tuple[str, str, tuple[str, ...], float]] = [
    ("Time that training waited for batches", "%", ("loader/wait_seconds",), 100),
    ("Time that checkpoints kept training", "%", ("checkpointer/stall_seconds",), 100),
    ("Batches", "batches/s", ("loader/batches",), 1),
    ("Tokens", "tokens/s", ("loader/tokens",), 1),
    ("Time of the loader's threads", "threads", ("loader/read_seconds", "loader/decode_seconds", "loader/collate_seconds"), 1),
    ("Data read, checkpoints written", "MB/s", ("loader/read_bytes", "checkpointer/write_bytes"), 1e-6),
]  # fmt: skip

_SMI = {
    "utilization.gpu": ("millrace_gpu_busy_ratio", 0.01),
    "memory.used": ("millrace_gpu_memory_used_bytes", 2**20),
    "memory.total": ("millrace_gpu_memory_size_bytes", 2**20),
    "temperature.gpu": ("millrace_gpu_temperature_celsius", 1),
    "power.draw": ("millrace_gpu_power_watts", 1),
    "clocks.current.sm": ("millrace_gpu_sm_clock_hertz", 1e6),
}


def _number(text: str) -> float | None:
    found = re.match(r"\s*(-?[\d.]+(?:e[-+]?\d+)?)", text)
    return float(found[1]) if found else None


def read_samples(path: str) -> tuple[str, dict[str, Curve]]:
    """Reads the node's name and its series over time, from the monitor's JSON lines or CSV, or from nvidia-smi's
    CSV."""
    series: dict[str, Curve] = {}
    host = ""

    def add(key: str, moment: str, value: float) -> None:
        times, values = series.setdefault(key, ([], []))
        if not times or times[-1] != moment:
            times.append(moment)
            values.append(value)

    with open(path, newline="", errors="replace") as file:
        if file.read(1) == "{":
            file.seek(0)
            for line in file:
                try:
                    each = json.loads(line)
                except ValueError:
                    continue
                if not isinstance(each, dict) or each.get("type") != "monitor_sample":
                    continue
                host = host or each["host"]
                moment = moment_of(each["time_ns"] / 1e9)
                for key, value in each["values"].items():
                    add(key, moment, float(value))
            return host or Path(path).name, series
        file.seek(0)
        rows = csv.reader(file, skipinitialspace=True)
        names = [name.split(" [")[0] if not name.startswith("millrace_") else name for name in next(rows, [])]
        for row in rows:
            if len(row) != len(names):
                continue
            cells = dict(zip(names, row, strict=True))
            host = host or cells.get("host", "")
            moment = cells["timestamp"].replace("/", "-")
            for name, text in cells.items():
                value = _number(text)
                if value is None:
                    continue
                if name.startswith("millrace_"):
                    add(name, moment, value)
                elif name in _SMI:
                    key, factor = _SMI[name]
                    add(f'{key}{{gpu="{cells.get("index", "")}"}}', moment, value * factor)
    return host or Path(path).name, series


def rate(curve: Curve) -> Curve:
    """Returns a counter's growth per second. There is no value where the counter started again."""
    from datetime import datetime

    times, values = curve
    seconds = [datetime.fromisoformat(each).timestamp() for each in times]
    kept = [at for at in range(1, len(values)) if values[at] >= values[at - 1] and seconds[at] > seconds[at - 1]]
    return (
        [times[at] for at in kept],
        [(values[at] - values[at - 1]) / (seconds[at] - seconds[at - 1]) for at in kept],
    )


def span_of(curves: Iterable[Curve]) -> tuple[str, str] | None:
    ends = [(times[0], times[-1]) for times, _ in curves if times]
    return (min(first for first, _ in ends), max(last for _, last in ends)) if ends else None


def add_counters(page: Page, objects: list[Object]) -> None:
    """Adds plots of the loaders and checkpointers of runs over time, from the counters in their records."""
    runs = {
        each["name"]: read_counters(each["path"])
        for each in objects
        if each["type"] == "report_input" and each["kind"] == "record"
    }
    sections: list[tuple[str, str, dict[str, Curve]]] = []
    for title, unit, names, factor in _COUNTED:
        curves: dict[str, Curve] = {}
        for run, lines in runs.items():
            for name in names:
                # A start counts from 0 on.
                known = [(moment, values.get(name, 0.0 if not values else None)) for moment, values in lines]
                counted = [(moment_of(moment), value) for moment, value in known if value is not None]
                if not any(value for _, value in counted):
                    continue
                times, values = rate(([each for each, _ in counted], [value for _, value in counted]))
                shown = f"{run} {name}" if len(runs) > 1 else name
                curves[shown] = (times, [value * factor for value in values])
        sections.append((title, unit, curves))
    span = span_of(curve for _, _, curves in sections for curve in curves.values())
    for title, unit, curves in sections:
        if any(len(values) > 1 for _, values in curves.values()):
            page.section(title, page.curves(curves, unit, "UTC", span=span))


def add_samples(page: Page, objects: list[Object]) -> None:
    nodes = [
        read_samples(each["path"]) for each in objects if each["type"] == "report_input" and each["kind"] == "samples"
    ]
    span = span_of(curve for _, series in nodes for curve in series.values())
    for title, unit, pattern, factor, is_rate in _PLOTS:
        curves: dict[str, Curve] = {}
        for host, series in nodes:
            for key, curve in sorted(series.items()):
                if not re.match(pattern, key):
                    continue
                times, values = rate(curve) if is_rate else curve
                name = re.sub(r"^millrace_|_total\b", "", key).replace('"', "")
                curves[f"{host} {name}" if len(nodes) > 1 else name] = (times, [value * factor for value in values])
        if any(values for _, values in curves.values()):
            page.section(title, page.curves(curves, unit, "UTC", span=span))
    if nodes:
        rows = [(host, len(series), max((len(v) for _, v in series.values()), default=0)) for host, series in nodes]
        page.section("Samples", table(("node", "series", "samples"), rows, [1, 2]))
