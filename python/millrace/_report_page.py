# SPDX-License-Identifier: Apache-2.0
"""Makes the page of a report, with its tables and plots."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

Object = dict[str, Any]
Curve = tuple[list[Any], list[float]]

_MOST_POINTS = 2000  # points of a curve on the page

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
    """Formats a number for people: 1.62 GB/s, 73,445 reads/s."""
    if unit in ("B/s", "bytes"):
        for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if abs(value) >= size:
                return f"{value / size:.3g} {name}" + ("/s" if unit == "B/s" else "")
        return f"{value:.3g} {'B/s' if unit == 'B/s' else 'B'}"
    return f"{value:,.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[int] = ()) -> str:
    """Returns a table. The columns in `numbers` are aligned to the right."""
    lines = ["<div class=scroll><table><tr>", *(f"<th>{escaped(cell)}</th>" for cell in head), "</tr>"]
    for row in rows:
        cells = (
            f"<td{' class=number' if place in numbers else ''}>{escaped(cell)}</td>" for place, cell in enumerate(row)
        )
        lines += ["<tr>", *cells, "</tr>"]
    return "".join([*lines, "</table></div>"])


def thinned(times: list[Any], values: list[float]) -> Curve:
    """Returns about _MOST_POINTS points at most: the smallest and the largest value of each stretch, so that no peak is
    lost."""
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

    def curves(
        self,
        curves: dict[str, Curve],
        unit: str,
        x_title: str = "",
        marks: Sequence[Any] = (),
        span: tuple[str, str] | None = None,
    ) -> str:
        """Returns a plot of lines by name. `marks`: places on the x axis with a vertical line. `span`: the range of the
        x axis, so that plots below each other share one time line."""
        figure = self._go.Figure()
        for name, (times, values) in curves.items():
            x, y = thinned(times, values)
            # Names may come from strangers; plotly interprets some tags in them.
            figure.add_trace(self._go.Scatter(x=x, y=y, mode="lines", name=escaped(name)))
        for place in marks:
            figure.add_vline(x=place, line={"dash": "dot", "color": "#808080", "width": 1})
        if span:
            figure.update_xaxes(range=list(span))
        return self._plot(figure, unit, x_title)

    def bars(self, names: Sequence[str], series: dict[str, list[tuple[float, float, float]]], unit: str) -> str:
        """Returns a plot of bars of (value, least, most) by series."""
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
        figure.update_xaxes(type="category")  # names such as "20" are not positions on an axis
        return self._plot(figure, unit)

    def time_line(self, spans: Sequence[Object]) -> str:
        """Returns a plot of bars over time, by lane. A span without length becomes a mark. Each span has lane, name,
        begin and end in seconds."""
        figure = self._go.Figure()
        for lane in dict.fromkeys(each["lane"] for each in spans):
            bars = [each for each in spans if each["lane"] == lane and each["end"] > each["begin"]]
            marks = [each for each in spans if each["lane"] == lane and each["end"] <= each["begin"]]
            if bars:
                figure.add_trace(
                    self._go.Bar(
                        y=[escaped(lane)] * len(bars),
                        base=[moment_of(each["begin"]) for each in bars],
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
                        x=[moment_of(each["begin"]) for each in marks],
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


def moment_of(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
