# SPDX-License-Identifier: Apache-2.0
"""Draws what millrace_storm prints: requests and bytes over time, with and without the cache of the node.

    build/dev/benchmarks/cache/millrace_storm > storm.jsonl
    python benchmarks/cache/storm_plot.py storm.jsonl docs/storm.svg

One row of panels for each number of nodes: requests a second (answered and refused) at the left, MB a second at the
right. Grey: without; blue: with. Prints the table of docs/benchmarks.md.
"""

import argparse
import json
import math
import pathlib

WIDTH, HEIGHT, LEFT, TOP = 360, 120, 70, 34
COLOURS = {False: "#999999", True: "#1f5fbf"}


def nice(value: float) -> float:
    """The next of 1, 2, 5, 10, ... at or above a value."""
    power = 10 ** math.floor(math.log10(max(value, 1)))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def line(values: list[float], length: int, top: float) -> str:
    """A polyline of the values by second; one second longer, so that it ends at 0."""
    points = [(i, value) for i, value in enumerate([*values, 0])]
    return " ".join(f"{x / length * WIDTH:.1f},{HEIGHT - y / top * HEIGHT:.1f}" for x, y in points)


def panel(x: int, y: int, title: str, runs: dict[bool, list[float]], unit: str) -> str:
    length = max(len(values) for values in runs.values())
    top = nice(max(max(values) for values in runs.values()))
    parts = [
        f'<g transform="translate({x},{y})">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#ccc"/>',
    ]
    for with_cache, values in runs.items():
        points = line(values, length, top)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[with_cache]}" stroke-width="1.5"/>')
    parts.append(f'<text x="0" y="-8">{title}</text>')
    parts.append(f'<text x="-6" y="10" text-anchor="end">{top:,.0f}</text>')
    parts.append(f'<text x="-6" y="{HEIGHT}" text-anchor="end">0</text>')
    parts.append(f'<text x="{WIDTH}" y="{HEIGHT + 14}" text-anchor="end">{length} s</text>')
    parts.append(f'<text x="0" y="{HEIGHT + 14}">{unit}</text></g>')
    return "".join(parts)


def draw(runs: list[dict]) -> str:
    counts = sorted({run["nodes"] for run in runs})
    height = TOP + len(counts) * (HEIGHT + 60)
    width = 2 * (WIDTH + LEFT) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="11"><rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="16" fill="{COLOURS[True]}">with the cache of the node, nodes take turns</text>',
        f'<text x="{LEFT + 300}" y="16" fill="{COLOURS[False]}">without: each rank lists and reads for itself</text>',
    ]
    for row, nodes in enumerate(counts):
        of_nodes = {run["with_cache"]: run for run in runs if run["nodes"] == nodes}
        y = TOP + 20 + row * (HEIGHT + 60)
        requests = {with_cache: run["requests_a_second"] for with_cache, run in of_nodes.items()}
        rates = {with_cache: [n / 1e6 for n in run["bytes_a_second"]] for with_cache, run in of_nodes.items()}
        parts.append(panel(LEFT, y, f"{nodes:,} nodes", requests, "requests a second, refused ones too"))
        parts.append(panel(2 * LEFT + WIDTH, y, f"{nodes:,} nodes", rates, "MB a second"))
    return "".join(parts) + "</svg>\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=pathlib.Path)
    parser.add_argument("svg", type=pathlib.Path)
    args = parser.parse_args()
    runs = [json.loads(text) for text in args.runs.read_text().splitlines()]
    args.svg.write_text(draw(runs))
    print(
        "| nodes | | requests answered | refused | GB | first node ready, s | all ready, s |\n|---|---|---|---|---|---|---|"
    )
    for run in runs:
        name = "with" if run["with_cache"] else "without"
        print(
            f"| {run['nodes']:,} | {name} | {run['wanted']:,} | {run['refused']:,} | {run['bytes'] / 1e9:,.1f} "
            f"| {run['first_s']:.1f} | {run['all_s']:.1f} |"
        )


if __name__ == "__main__":
    main()
