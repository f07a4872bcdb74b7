"""A plot of lines as SVG, for a page of docs/: logarithmic to the right, from zero upwards."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

WIDTH: Final = 640
HEIGHT: Final = 300
LEFT: Final = 60
RIGHT: Final = 150
TOP: Final = 20
BOTTOM: Final = 45
COLOURS: Final = ("#2f6fde", "#1a7f37", "#b42318")


def plot(title: str, across: str, up: str, at: Sequence[int], lines: Mapping[str, Sequence[float]]) -> str:
    """`lines`: by name, a value for each place of `at`, which are above zero and grow."""
    high = 1.15 * max(max(values) for values in lines.values())
    low_x, high_x = math.log10(at[0]), math.log10(at[-1])

    def x(place: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(place) - low_x) / (high_x - low_x)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / high

    step = 10 ** math.floor(math.log10(high))
    step = next(step * part for part in (0.2, 0.5, 1, 2) if high / (step * part) <= 6)
    ticks = [step * number for number in range(int(high / step) + 1)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for tick in ticks:
        parts.append(f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}" stroke="#d8dce2"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end" fill="#57606a">{tick:g}</text>')
    parts += [
        f'<text x="{x(place):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#57606a">{place:,}</text>'
        for place in at
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle" fill="#1b1f24">{escape(across)}</text>')
    parts.append(
        f'<text transform="translate(16 {(HEIGHT - BOTTOM + TOP) / 2}) rotate(-90)" text-anchor="middle" '
        f'fill="#1b1f24">{escape(up)}</text>'
    )
    for (name, values), colour in zip(lines.items(), COLOURS, strict=False):
        points = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in zip(at, values, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x(place):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>'
            for place, value in zip(at, values, strict=True)
        ]
        parts.append(
            f'<text x="{WIDTH - RIGHT + 12}" y="{y(values[-1]) + 4:.1f}" fill="{colour}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])
