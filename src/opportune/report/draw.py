"""Figures as SVG, drawn by matplotlib from figure data; its colours follow the page's, light or dark.

No text of a run folder gets into an SVG: names of methods stand in the page, so there is nothing to escape here.
"""

from __future__ import annotations

import io
import re
from typing import Any

from ..diagnostics.plots.palette import look
from .figure_data import U_AXIS, Figure

INK, FAINT = "#20242b", "#c9ced6"
_SIZE = {"curves": (4.4, 3.1), "map": (4.4, 2.7)}  # inches; small, so that text is large enough on a phone
_BAND_SEEDS = 3
"""From here on a band is drawn: the interval of two seeds is 13 times their scatter and hides everything."""
_SETTINGS = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 10.5,
    "font.family": ["DejaVu Sans"],
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.formatter.useoffset": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
}


def draw(figure: Figure) -> str:
    """The figure as a complete SVG document, in the colours of a light page."""
    try:
        import matplotlib
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise ImportError('a report needs matplotlib: pip install "opportune[report]".') from error
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": figure.key}):
        canvas = Canvas(figsize=_SIZE[figure.kind], layout="constrained")
        canvas.patch.set_alpha(0.0)
        axes = canvas.add_subplot()
        axes.patch.set_alpha(0.0)
        {"curves": _curves, "map": _map}[figure.kind](axes, figure.data)
        axes.spines[["top", "right"]].set_visible(False)
        file = io.StringIO()
        canvas.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()


def inline(svg: str, key: str) -> str:
    """The SVG as part of a page: identifiers of its own, colours and font of the page, method groups as classes."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="method-(\d+)-\d+"', r'class="m\1"', svg)
    svg = re.sub(r'\bid="', f'id="{key}-', svg)
    svg = re.sub(r'href="#', f'href="#{key}-', svg)
    svg = re.sub(r"url\(#", f"url(#{key}-", svg)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)
    colours = {INK: "var(--ink)", FAINT: "var(--rule)"} | {look(n).light: f"var(--m{n})" for n in range(8)}
    for colour, variable in colours.items():
        svg = svg.replace(colour, variable)
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()  # type: ignore[union-attr]
    head = f'<svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="{key}-title" '
    return head + 'xmlns:xlink="http://www.w3.org/1999/xlink">' + svg[svg.index(">") + 1 :]


def _curves(axes: Any, data: Any) -> None:
    heights: list[float] = []
    for series in data["series"]:
        style = look(series["number"])
        dash = {"dashes": [float(n) / 1.5 for n in style.dash.split()]} if style.dash else {}
        mean = series["mean"]
        drawn = 0
        for seed in series["seeds"]:
            alone = mean is None or len(series["seeds"]) == 1
            # A run that is not finished ends in an open marker, and is not in the mean.
            points = [(x, y) for x, y in zip(seed["x"], seed["y"], strict=True) if y is not None]
            if not points or (alone and mean is not None):
                continue
            xs, ys = zip(*points, strict=True)
            heights += ys
            (line,) = axes.plot(xs, ys, color=style.light, lw=1.6 if alone else 0.8, alpha=1 if alone else 0.45, **dash)
            line.set_gid(f"method-{series['number']}-{drawn}")
            drawn += 1
            if not seed["finished"]:
                (end,) = axes.plot(xs[-1:], ys[-1:], "o", mfc="none", mec=style.light)
                end.set_gid(f"method-{series['number']}-{drawn}")
                drawn += 1
        if mean is None:
            continue
        heights += [y for y in mean["y"] if y is not None]
        every = max(1, len(mean["x"]) // 8)
        (line,) = axes.plot(mean["x"], mean["y"], color=style.light, lw=2.2, marker=style.marker, ms=5, markevery=every,
                            **dash)  # fmt: skip
        line.set_gid(f"method-{series['number']}-{drawn}")
        if sum(seed["finished"] for seed in series["seeds"]) >= _BAND_SEEDS and mean["low"][0] is not None:
            band = axes.fill_between(mean["x"], mean["low"], mean["high"], color=style.light, alpha=0.13, lw=0)
            band.set_gid(f"method-{series['number']}-{drawn + 1}")
    if data["target"] is not None:
        axes.axhline(data["target"], color=INK, lw=1, ls=":")
        heights.append(data["target"])
    if data["y_log"] and min(heights, default=0) > 0 and max(heights) / min(heights) >= 4:
        axes.set_yscale("log")
        _few_ticks(axes, min(heights), max(heights))
    _set_range(axes, heights)
    axes.grid(True, axis="y")
    axes.set_axisbelow(True)
    axes.set(xlabel=data["x_label"], ylabel=data["y_label"])
    if data["x_label"] == U_AXIS:
        axes.set_xlim(0, 1)
    else:
        axes.set_xlim(left=0)


def _set_range(axes: Any, heights: list[float]) -> None:
    """The range of the lines; wide bands are cut."""
    if not heights:
        return
    low, high = min(heights), max(heights)
    if axes.get_yscale() == "log":
        pad = (high / low) ** 0.06 if high > low else 1.05
        axes.set_ylim(low / pad, high * pad)
    else:
        pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
        axes.set_ylim(low - pad, high + pad)


def _few_ticks(axes: Any, low: float, high: float) -> None:
    """Plain numbers, at 1, 2 and 5 where a log axis spans little."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if high / low < 200:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _map(axes: Any, data: Any) -> None:
    import numpy as np
    from matplotlib.colors import LogNorm

    table = np.array(data["values"], dtype=float).T  # [bins, columns]; None becomes nan, which is left empty
    edges = np.array(data["edges"], dtype=float)
    # An image has equal columns; records are equal but for the last, so columns are laid on a fine equal grid.
    middles = (np.arange(240) + 0.5) / 240 * edges[-1]
    table = table[:, np.searchsorted(edges, middles, side="left").clip(1, len(edges) - 1) - 1]
    image = axes.imshow(
        np.maximum(table, 1e-3),
        norm=LogNorm(1 / data["scale"], data["scale"]),
        cmap="PuOr_r",
        extent=(0, edges[-1], 0, 1),
        origin="lower",
        aspect="auto",
        interpolation="none",
    )
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02)
    ticks = [1 / data["scale"], 1.0, data["scale"]]
    bar.set_ticks(ticks, labels=[f"1/{data['scale']:g}×", "1×", f"{data['scale']:g}×"])
    bar.ax.minorticks_off()
    bar.set_label("draws, relative to uniform")
    axes.set(xlabel=data["x_label"], ylabel=data["y_label"])
