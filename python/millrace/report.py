# SPDX-License-Identifier: Apache-2.0
"""Writes the page behind `--html FILE` of the command line: `python -m millrace.report INPUT OUT`.

INPUT is JSON lines: first an object of type "report" (title, command, host, time, version), then what the verb prints
with --json, and objects of type "report_input" that name files to plot (kind "record" or "samples") and of type "report_span"
(lane, name, begin, end: seconds since 1970) for a time line. The page needs no network. Needs plotly: pip install 'millrace-io[report]'.
"""

from __future__ import annotations

import base64
import csv
import html
import json
import math
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Object = dict[str, Any]
Curve = tuple[list[Any], list[float]]

_MOST_POINTS = 2000  # of a curve on the page

_STYLE = """
:root { color-scheme: light dark; --line: rgba(128, 128, 128, 0.35); }
body { background: Canvas; color: CanvasText; font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem;
  padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { border-top: 1px solid var(--line); margin-top: 2.5rem; padding-top: 1rem; }
table { border-collapse: collapse; margin: 1rem 0; } th, td { border-bottom: 1px solid var(--line);
  padding: 0.25rem 0.75rem; text-align: left; vertical-align: top; } td.number { text-align: right;
  font-variant-numeric: tabular-nums; }
.about { opacity: 0.75; } code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; }
.verdict { border-left: 0.3rem solid; margin: 1rem 0; padding: 0.25rem 1rem; } .error { border-color: #d1495b; }
.warning { border-color: #d9a13b; } .fine { border-color: #4d9f6f; } .plot { min-height: 320px; }
.scroll { overflow-x: auto; } .strip { display: flex; flex-wrap: wrap; gap: 0.5rem; margin: 1rem 0; }
.strip figure { flex: 0 0 auto; margin: 0; } .strip figcaption { font-size: 12px; opacity: 0.75; }
@media print { :root { color-scheme: light; } .modebar { display: none !important; } section { break-inside: avoid; }
  body { max-width: none; margin: 0; } }
"""


def escaped(text: object) -> str:
    return html.escape(str(text))


def quantity(value: float, unit: str) -> str:
    """A number as people read it: 1.62 GB/s, 73,445 reads/s."""
    if unit in ("B/s", "bytes"):
        for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if abs(value) >= size:
                return f"{value / size:.3g} {name}" + ("/s" if unit == "B/s" else "")
        return f"{value:.3g} {'B/s' if unit == 'B/s' else 'B'}"
    return f"{value:,.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[int] = ()) -> str:
    """A table; columns in `numbers` go to the right."""
    lines = ["<div class=scroll><table><tr>", *(f"<th>{escaped(cell)}</th>" for cell in head), "</tr>"]
    for row in rows:
        cells = (
            f"<td{' class=number' if place in numbers else ''}>{escaped(cell)}</td>" for place, cell in enumerate(row)
        )
        lines += ["<tr>", *cells, "</tr>"]
    return "".join([*lines, "</table></div>"])


def thinned(times: list[Any], values: list[float]) -> Curve:
    """At most some _MOST_POINTS points: of each stretch the least and the most, so that no peak is lost."""
    if len(values) <= _MOST_POINTS:
        return times, values
    stretch = math.ceil(2 * len(values) / _MOST_POINTS)
    kept: list[int] = []
    for begin in range(0, len(values), stretch):
        places = range(begin, min(begin + stretch, len(values)))
        kept += sorted({min(places, key=values.__getitem__), max(places, key=values.__getitem__)})
    return [times[place] for place in kept], [values[place] for place in kept]


class Page:
    def __init__(self, about: Object):
        import plotly.graph_objects as go
        from plotly.offline import get_plotlyjs

        self._go, self._script = go, get_plotlyjs()
        self._about = about
        self._sections: list[str] = []

    def section(self, title: str, *parts: str) -> None:
        self._sections.append(f"<section><h2>{escaped(title)}</h2>{''.join(parts)}</section>")

    def _plot(self, figure: Any, unit: str, x_title: str = "") -> str:
        grey = "rgba(128,128,128,0.35)"
        figure.update_layout(
            template="none",
            paper_bgcolor="rgba(0,0,0,0)",
            plot_bgcolor="rgba(0,0,0,0)",
            font={"color": "#808080", "family": "system-ui, sans-serif"},
            margin={"l": 70, "r": 20, "t": 20, "b": 60},
            legend={"orientation": "h", "y": -0.2},
            height=360,
        )
        figure.update_xaxes(gridcolor=grey, linecolor=grey, zerolinecolor=grey, title=x_title)
        figure.update_yaxes(gridcolor=grey, linecolor=grey, zerolinecolor=grey, title=unit)
        shown: str = figure.to_html(
            full_html=False, include_plotlyjs=False, config={"displaylogo": False, "responsive": True}
        )
        return f"<div class=plot>{shown}</div>"

    def curves(self, curves: dict[str, Curve], unit: str, x_title: str = "", marks: Sequence[Any] = ()) -> str:
        """Lines by name. `marks`: places on the x axis with a vertical line."""
        figure = self._go.Figure()
        for name, (times, values) in curves.items():
            x, y = thinned(times, values)
            # Names may come from others; plotly reads a few tags in them.
            figure.add_trace(self._go.Scatter(x=x, y=y, mode="lines", name=escaped(name)))
        for place in marks:
            figure.add_vline(x=place, line={"dash": "dot", "color": "#808080", "width": 1})
        return self._plot(figure, unit, x_title)

    def bars(self, names: Sequence[str], series: dict[str, list[tuple[float, float, float]]], unit: str) -> str:
        """Bars of (value, least, most) by series."""
        figure = self._go.Figure()
        for name, values in series.items():
            figure.add_trace(
                self._go.Bar(
                    x=[escaped(each) for each in names],
                    y=[value for value, _, _ in values],
                    name=escaped(name),
                    error_y={
                        "type": "data",
                        "symmetric": False,
                        "array": [most - value for value, _, most in values],
                        "arrayminus": [value - least for value, least, _ in values],
                        "color": "#808080",
                    },
                )
            )
        figure.update_layout(barmode="group")
        figure.update_xaxes(type="category")  # names such as "20" are no places on an axis
        return self._plot(figure, unit)

    def time_line(self, spans: Sequence[Object]) -> str:
        """Bars over the time by lane; what has no length is a mark. Of each span: lane, name, begin and end in seconds."""
        figure = self._go.Figure()
        for lane in dict.fromkeys(each["lane"] for each in spans):
            bars = [each for each in spans if each["lane"] == lane and each["end"] > each["begin"]]
            marks = [each for each in spans if each["lane"] == lane and each["end"] <= each["begin"]]
            if bars:
                figure.add_trace(
                    self._go.Bar(
                        y=[escaped(lane)] * len(bars),
                        base=[_moment(each["begin"]) for each in bars],
                        x=[(each["end"] - each["begin"]) * 1e3 for each in bars],
                        text=[escaped(each["name"]) for each in bars],
                        hovertext=[f"{escaped(each['name'])}: {each['end'] - each['begin']:.1f} s" for each in bars],
                        hoverinfo="text",
                        textposition="inside",
                        insidetextanchor="start",
                        marker={"line": {"color": "#808080", "width": 1}},
                        orientation="h",
                        showlegend=False,
                    )
                )
            if marks:
                figure.add_trace(
                    self._go.Scatter(
                        y=[escaped(lane)] * len(marks),
                        x=[_moment(each["begin"]) for each in marks],
                        hovertext=[escaped(each["name"]) for each in marks],
                        hoverinfo="text",
                        mode="markers",
                        marker={"color": "#d1495b", "size": 12, "symbol": "x"},
                        showlegend=False,
                    )
                )
        figure.update_layout(barmode="overlay")
        figure.update_xaxes(type="date")
        figure.update_yaxes(autorange="reversed", automargin=True)
        return self._plot(figure, "", "UTC")

    def text(self) -> str:
        about = self._about
        lines = [f"<h1>{escaped(about['title'])}</h1>", "<p class=about>"]
        lines += [f"{escaped(about['time'])} on {escaped(about['host'])}, Millrace {escaped(about['version'])}<br>"]
        lines += [f"<code>{escaped(about['command'])}</code></p>"]
        # The library is one script; </script> does not occur in it.
        return (
            "<!doctype html><html lang=en><head><meta charset=utf-8>"
            '<meta name=viewport content="width=device-width"><link rel=icon href="data:,">'
            f"<title>{escaped(about['title'])}</title><style>{_STYLE}</style><script>{self._script}</script></head><body>"
            f"{''.join(lines)}{''.join(self._sections)}</body></html>\n"
        )


# --- bench


def add_bench(page: Page, objects: list[Object]) -> None:
    results = [each for each in objects if each["type"] == "bench_storage"]
    if not results:
        return
    mounts = list(dict.fromkeys(each["mount"] for each in results))
    for unit, title in (("B/s", "Throughput"), ("reads/s", "Random reads"), ("files/s", "Metadata")):
        tests = list(dict.fromkeys(each["test"] for each in results if each["unit"] == unit))
        if not tests:
            continue
        by_place = {(each["mount"], each["test"]): each for each in results}
        scale, shown = (1e9, "GB/s") if unit == "B/s" else (1, unit)
        series = {
            mount: [
                tuple(by_place[mount, test][key] / scale if (mount, test) in by_place else 0.0 for key in _SPREAD)
                for test in tests
            ]
            for mount in mounts
        }
        page.section(f"{title}: median of the rounds, with least and most", page.bars(tests, series, shown))  # type: ignore[arg-type]
    timed = [each for each in results if each["p99_s"] > 0]
    series = {name: [(each[key] * 1e3,) * 3 for each in timed] for name, key in (("p50", "p50_s"), ("p99", "p99_s"))}
    names = [each["test"] + (f", {each['mount']}" if len(mounts) > 1 else "") for each in timed]
    page.section("Latency of single requests", page.bars(names, series, "ms"))  # type: ignore[arg-type]
    rows = [
        (
            *(each[key] for key in ("mount", "test", "nodes", "ranks")),
            quantity(each["request_bytes"], "bytes") if each["request_bytes"] else "",
            *(quantity(each[key], each["unit"]) for key in _SPREAD),
            f"{each['slowest_share']:.0%}",
            f"{each['start_spread_s'] * 1e3:.1f} ms",
            "" if each["cached"] is None else f"{each['cached']:.0%}",
            "its own" if each["own_data"] else "",
        )
        for each in results
    ]
    head = ("file system", "test", "nodes", "ranks", "request", "median", "least", "most", "slowest rank")
    page.section("All numbers", table((*head, "starts within", "in the page cache", "read"), rows, range(2, 11)))
    meanings = [each for each in objects if each["type"] == "bench_meaning"]
    if meanings:
        rows = [tuple(each[key] for key in ("mount", "what", "value", "formula")) for each in meanings]
        page.section("What it means", table(("file system", "what", "value", "how it was found"), rows, [2]))


_SPREAD = ("median", "least", "most")


# --- doctor


def add_doctor(page: Page, objects: list[Object]) -> None:
    verdicts = [each for each in objects if each["type"] == "verdict"]
    for summary in (each for each in objects if each["type"] == "doctor"):
        parts = []
        for each in verdicts:
            evidence = "".join(f"<li>{escaped(line)}</li>" for line in each["evidence"])
            parts.append(
                f"<div class='verdict {escaped(each['severity'])}'><b>{escaped(each['summary'])}</b> "
                f"[{escaped(each['rule'])}]<ul>{evidence}</ul><p>{escaped(each['reason'])}</p>"
                f"<p><b>Do:</b> {escaped(each['advice'])}</p></div>"
            )
        if not verdicts:
            parts.append("<div class='verdict fine'><b>Nothing found.</b></div>")
        page.section("Verdict", *parts)
        rows = [("looked at", each) for each in summary["looked_at"]]
        rows += [("not looked at", each) for each in summary["not_looked_at"]]
        page.section("What was looked at", table(("", ""), rows))


# --- records of trainings


def read_record(folder: str) -> tuple[dict[str, Curve], list[int]]:
    """Values by name over steps, and the steps at which a later start went on (docs/format/run.md)."""
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


def read_starts(name: str, folder: str) -> list[Object]:
    """The starts of a run as spans of a time line, each with how it ended."""
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
    """Of objects "report_span", and of the starts of runs where one was started more than once."""
    spans = [each for each in objects if each["type"] == "report_span"]
    runs = [each for each in objects if each["type"] == "report_input" and each["kind"] == "record"]
    starts = [span for each in runs for span in read_starts(each["name"], each["path"])]
    if spans or len(starts) > len(runs):
        page.section("Time line", page.time_line(spans + starts))


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


def add_runs(page: Page, objects: list[Object]) -> None:
    for run in (each for each in objects if each["type"] == "training_run"):
        about = [(key, value) for key, value in run.items() if not isinstance(value, (dict, list)) and key != "type"]
        page.section(f"Run {run['name']}", table(("", ""), about))
        if run["seconds"]:
            parts = {"waited for data": run["data_wait_s"], "kept by checkpoints": run["save_stall_s"]}
            parts["the rest"] = run["seconds"] - sum(parts.values())
            bars = {name: [(value,) * 3] for name, value in parts.items()}
            page.section("Where the time went", page.bars([run["name"]], bars, "seconds"))  # type: ignore[arg-type]
    differences = [each for each in objects if each["type"] == "run_difference"]
    if differences:
        rows = [(each["what"], each["left"], each["right"]) for each in differences]
        page.section("Differences", table(("what", "first", "second"), rows))


# --- robot datasets

_PICTURE_WIDTH = 240  # pixels on the page, at most


def png(picture: Any) -> str:
    """The address of a picture (uint8 [height, width, 3]) that holds it itself. A large one is made smaller: each
    pixel is the mean of a square."""
    side = max(1, math.ceil(picture.shape[1] / _PICTURE_WIDTH))
    height, width = max(1, picture.shape[0] // side), picture.shape[1] // side
    if picture.shape[0] >= side:
        squares = picture[: height * side, : width * side].reshape(height, side, width, side, 3)
        picture = squares.mean(axis=(1, 3)).round().astype(picture.dtype)
    lines = b"".join(b"\0" + row.tobytes() for row in picture)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", picture.shape[1], picture.shape[0], 8, 2, 0, 0, 0)
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(file).decode()


def strip(url: str, camera: str, frames: list[Object], fps: float) -> str:
    """The pictures of a camera beside each other, or the reason why there are none."""
    from millrace.video import Reader

    try:
        video = Reader(f"{url.rstrip('/')}/{frames[0]['file']}")
        pictures = [png(picture) for picture in video.frames([each["frame"] for each in frames])]
    except (OSError, ValueError, IndexError, NotImplementedError) as error:
        return f"<div class='verdict warning'>{escaped(camera)}: {escaped(error)}</div>"
    shown = []
    for each, address in zip(frames, pictures, strict=True):
        when = f", {each['row'] / fps:.2f} s" if fps > 0 else ""
        what = f"{escaped(camera)}, row {each['row']}{when}"
        shown.append(
            f"<figure><img alt='{what}' src='{address}'><figcaption>row {each['row']}{when}</figcaption></figure>"
        )
    return f"<h3>{escaped(camera)}</h3><div class=strip>{''.join(shown)}</div>"


def _number_text(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def add_robot_dataset(page: Page, found: Object) -> None:
    about = [
        ("version", found["version"] + (" with GR00T's modality.json" if found["groot"] else "")),
        ("robot", found["robot_type"] or "not named"),
        ("episodes", f"{found['episodes']:,}"),
        ("frames", f"{found['frames']:,}"),
        ("hours", f"{found['hours']:.2f} at {found['fps']:g} frames a second"),
        ("files", f"{found['files']:,}"),
        *((name, quantity(found["bytes"][name], "bytes")) for name in ("data", "videos", "meta", "other")),
        ("in the metadata", f"errors: {found['errors']}, warnings: {found['warnings']} (millrace lerobot validate)"),
    ]
    mixed = "".join(f"<li>{escaped(line)}</li>" for line in found["explanation"])
    warning = f"<div class='verdict error'><b>This tree is of no one version.</b><ul>{mixed}</ul></div>"
    page.section("Dataset", warning if mixed else "", table(("", ""), about))
    bins = found["length_histogram"]
    names = [
        f"{each['from']}" if each["to"] == each["from"] + 1 else f"{each['from']}-{each['to'] - 1}" for each in bins
    ]
    if bins:
        counts = {"episodes": [(each["episodes"],) * 3 for each in bins]}
        note = "<p class=about>By frames of an episode.</p>"
        page.section("Lengths of episodes", page.bars(names, counts, "episodes"), note)  # type: ignore[arg-type]
    rows = [
        (
            each["name"],
            each["dtype"],
            " x ".join(map(str, each["shape"])),
            _number_text(each["min"]),
            _number_text(each["max"]),
        )
        for each in found["features"]
    ]
    page.section("Features", table(("feature", "dtype", "shape", "min", "max"), rows, [3, 4]))
    cameras = [
        (
            each["key"],
            f"{each['height']} x {each['width']}",
            *(each[key] for key in ("codec", "pixel_format", "files")),
            quantity(each["bytes"], "bytes"),
        )
        for each in found["cameras"]
    ]
    if cameras:
        page.section("Cameras", table(("camera", "size", "codec", "pixels", "files", "bytes"), cameras, [4, 5]))
    tasks = [(each["task_index"], each["task"], each["episodes"]) for each in found["tasks"]]
    if tasks:
        more = f"<p class=about>and {len(tasks) - 50:,} more (--json has all)</p>" if len(tasks) > 50 else ""
        page.section("Tasks", table(("task", "text", "episodes"), tasks[:50], [0, 2]), more)


def add_robot_preview(page: Page, preview: Object) -> None:
    number, fps = preview["episode"], preview["fps"]
    by_camera: dict[str, list[Object]] = {}
    for each in preview["frames"]:
        by_camera.setdefault(each["camera"], []).append(each)
    strips = [strip(preview["url"], camera, frames, fps) for camera, frames in by_camera.items()]
    left_out = [f"<div class='verdict warning'>{escaped(line)}</div>" for line in preview["not_shown"]]
    if strips or left_out:
        page.section(f"Episode {number}: pictures", *strips, *left_out)
    times = [row / fps if fps > 0 else row for row in preview["rows"]]
    for each in preview["series"]:
        names = each["names"] or [str(place) for place in range(len(each["values"]))]
        # Two curves may have one name: a dataset with "gripper" twice exists.
        twice = {name for name in names if names.count(name) > 1}
        shown = {
            f"{name} [{place}]" if name in twice else name: (times, values)
            for place, (name, values) in enumerate(zip(names, each["values"], strict=True))
        }
        axis = "seconds" if fps > 0 else "row"
        page.section(f"Episode {number}: {each['feature']}", page.curves(shown, each["feature"], axis))


def add_robot(page: Page, objects: list[Object]) -> None:
    for each in objects:
        if each["type"] == "lerobot_inspect":
            add_robot_dataset(page, each)
        elif each["type"] == "lerobot_preview":
            add_robot_preview(page, each)


# --- samples of the monitor

# Title, unit, beginning of the series' names, factor, and whether a counter becomes a rate.
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
    """The node's name and its series over time, of the monitor's JSON lines or CSV, or of nvidia-smi's CSV."""
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
                moment = _moment(each["time_ns"] / 1e9)
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


def _moment(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def rate(curve: Curve) -> Curve:
    """A counter's growth a second. One that began again has no value there."""
    from datetime import datetime

    times, values = curve
    seconds = [datetime.fromisoformat(each).timestamp() for each in times]
    kept = [at for at in range(1, len(values)) if values[at] >= values[at - 1] and seconds[at] > seconds[at - 1]]
    return (
        [times[at] for at in kept],
        [(values[at] - values[at - 1]) / (seconds[at] - seconds[at - 1]) for at in kept],
    )


def add_samples(page: Page, objects: list[Object]) -> None:
    nodes = [
        read_samples(each["path"]) for each in objects if each["type"] == "report_input" and each["kind"] == "samples"
    ]
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
            page.section(title, page.curves(curves, unit, "UTC"))
    if nodes:
        rows = [(host, len(series), max((len(v) for _, v in series.values()), default=0)) for host, series in nodes]
        page.section("Samples", table(("node", "series", "samples"), rows, [1, 2]))


_PARTS: list[Callable[[Page, list[Object]], None]] = [
    add_time_line, add_doctor, add_bench, add_runs, add_records, add_robot, add_samples,
]  # fmt: skip


def write_report(source: Path, target: Path) -> None:
    """Makes the page of the JSON lines in `source`. Raises ImportError (no plotly), OSError, ValueError."""
    objects = [json.loads(line) for line in source.read_text().splitlines()]
    if not objects or objects[0].get("type") != "report":
        raise ValueError(f"{source} does not begin with an object of type report")
    page = Page(objects[0])
    for add in _PARTS:
        add(page, objects[1:])
    beside = target.with_name(target.name + ".tmp")
    beside.write_text(page.text())
    beside.replace(target)


def main() -> int:
    try:
        write_report(Path(sys.argv[1]), Path(sys.argv[2]))
    except ImportError as error:
        print(f"{error}: install it by pip install 'millrace-io[report]'", file=sys.stderr)
        return 1
    except (OSError, ValueError, KeyError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
