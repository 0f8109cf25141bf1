# SPDX-License-Identifier: Apache-2.0
"""Writes the page behind `--html FILE` of the command line: `python -m millrace.report INPUT OUT`.

INPUT is a file of JSON lines. The first line is an object of type "report" (title, command, host, time, version). The
next lines are the output of the command with --json, objects of type "report_input" that name files to plot (kind
"record" or "samples"), and objects of type "report_span" (lane, name, begin, end: seconds since 1970) for a time line.
The page needs no network. This module needs plotly: pip install 'millrace-io[report]'.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace._report_bench import add_bench, add_data_benches
from millrace._report_page import Object, Page, escaped, quantity, table
from millrace._report_time import add_counters, add_records, add_samples, add_time_line

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


# --- runs


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
    """Returns a picture (uint8 [height, width, 3]) as a data URL. A large picture is made smaller: each pixel is the
    mean of a square."""
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
    """Returns the pictures of a camera next to each other, or the reason why there are none."""
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
        # Two curves may have the same name: a dataset with "gripper" twice exists.
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


_PARTS: list[Callable[[Page, list[Object]], None]] = [
    add_time_line, add_doctor, add_bench, add_data_benches, add_runs, add_records, add_counters, add_robot, add_samples,
]  # fmt: skip


def write_report(source: Path, target: Path) -> None:
    """Makes the page from the JSON lines in `source`. Raises ImportError (no plotly), OSError, ValueError."""
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
