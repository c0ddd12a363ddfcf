"""Picture of the scorecard: each score as a bar from chance towards the best value, beside known values.

It is HTML without an image, so that its text keeps its size on narrow screens. Each value has a line of its
own with its name, its place and its number: nothing overlaps, and no colour is needed to read it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from .row import Row

STYLE = """
header p { overflow-wrap: anywhere; }
.scores { display: grid; gap: 16px; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 460px), 1fr)); }
.score { background: var(--panel); border: 1px solid var(--line); border-radius: 10px; min-width: 0;
  padding: 14px; }
.score h3 { font-size: 15px; margin: 0 0 8px; overflow-wrap: anywhere; }
.score .line { display: grid; grid-template-columns: 11.5em 1fr 4em; gap: 8px; align-items: center;
  font-size: 13px; line-height: 1.35; padding: 2px 0; }
.score .who { overflow-wrap: anywhere; }
.score .value { text-align: right; font-variant-numeric: tabular-nums; }
.score .model { font-weight: 650; }
.score .track { position: relative; height: 18px; margin: 0 7px;
  background: linear-gradient(var(--line), var(--line)) center / 100% 1px no-repeat; }
.score .bar { position: absolute; top: 3px; height: 12px; background: var(--accent); min-width: 2px; }
.score .chance { position: absolute; top: 0; height: 18px; border-left: 2px solid var(--soft); }
.score .mark { position: absolute; top: -1px; width: 1.2em; margin-left: -0.6em; text-align: center;
  font-size: 15px; line-height: 20px; color: var(--ink); }
.score .ends { display: flex; justify-content: space-between; gap: 8px; color: var(--soft);
  font-size: 12px; border-top: 1px solid var(--line); margin-top: 6px; padding-top: 6px; }
.score .ends span:last-child { text-align: right; }
@media (max-width: 600px) {
  .score { padding: 10px; }
  .score .line { grid-template-columns: 7.5em 1fr 3.6em; }
}
"""
LOWEST_SHARE = -1.0
"""Share at which values that are much worse than chance are drawn. Their numbers stay true."""
BASELINE = "\N{BLACK DIAMOND}"
KNOWN = "\N{WHITE CIRCLE}"
PUBLISHED = "\N{BLACK UP-POINTING TRIANGLE}"
LEGEND = (
    "A bar begins at chance, the vertical line, and ends at the value of the model. The best possible value "
    "is on the right; a bar to the left of chance is worse. "
    f"{BASELINE} is a baseline without a language model, {KNOWN} another model on the same data, "
    f"{PUBLISHED} a published value that can be compared."
)
Kind = Literal["model", "baseline", "known", "published"]
MARKS: dict[Kind, str] = {"baseline": BASELINE, "known": KNOWN, "published": PUBLISHED}


@dataclass(frozen=True)
class Value:
    """Value on a line of the picture."""

    who: str
    value: float
    kind: Kind


def score_block(row: Row, values: Sequence[Value]) -> str:
    """Return the picture of one score.

    Args:
        row: score, with chance and the best value.
        values: values of the models, and those beside them.
    """
    shares = [
        max(row.share(one.value), LOWEST_SHARE) if math.isfinite(one.value) else 0.0
        for one in values
    ]
    lowest = min([0.0, *shares])

    def place(share: float) -> float:
        """Return the place in percent of the line."""
        return 100 * (min(share, 1.0) - lowest) / (1 - lowest)

    lines = []
    for one, share in zip(values, shares, strict=True):
        number = f"{one.value:.3f}"
        marks = f'<span class="chance" style="left:{place(0):.2f}%"></span>'
        if not math.isfinite(one.value):
            number = "\N{EN DASH}"
        elif one.kind == "model":
            start, end = sorted((place(0), place(share)))
            marks += f'<span class="bar" style="left:{start:.2f}%;width:{end - start:.2f}%"></span>'
        else:
            marks += f'<span class="mark" style="left:{place(share):.2f}%">{MARKS[one.kind]}</span>'
        lines.append(
            f'<div class="line {one.kind}"><span class="who">{escape(one.who)}</span>'
            f'<span class="track">{marks}</span>'
            f'<span class="value">{number}</span></div>'
        )
    direction = "lower is better" if row.is_lower_better else "higher is better"
    chance = f"{row.compared.chance_of}: {row.compared.chance:.3f}"
    best = f"best: {row.best:g}"
    numbers = "; ".join(f"{one.who} {one.value:.3f}" for one in values)
    described = f"{row.name}: {numbers}; {chance}; {best}; {direction}"
    return (
        f'<div class="score" role="img" aria-label="{escape(described)}">'
        f"<h3>{escape(row.name)}</h3>{''.join(lines)}"
        f'<div class="ends"><span>{escape(chance)}</span>'
        f"<span>{escape(best)} ({direction})</span></div></div>"
    )
