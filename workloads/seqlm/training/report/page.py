"""HTML of a report, and the forms of its numbers and other values.

Every text that comes from outside is escaped here. Only figures are inserted unchanged.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

_CSS = """
:root { --page: #f3f5f8; --panel: #fff; --ink: #1f2937; --soft: #5b6472; --line: #dfe3e9;
  --accent: #0072b2; --edge: #9ca3af; }
@media (prefers-color-scheme: dark) {
  :root { --page: #12161c; --panel: #1c222b; --ink: #e6e9ee; --soft: #a3adba; --line: #343c48;
    --accent: #56b4e9; --edge: #5b6472; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 56px; }
header { border-left: 5px solid var(--accent); padding-left: 16px; margin-bottom: 24px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 36px 0 12px; }
header p { margin: 0; color: var(--soft); }
.cards { display: flex; flex-wrap: wrap; gap: 12px; margin-bottom: 16px; }
.card, figure, .panel { background: var(--panel); border: 1px solid var(--line); border-radius: 10px; }
.card { padding: 12px 14px; flex: 1 1 calc(100% / var(--columns) - 12px); }
.card .label { color: var(--soft); font-size: 13px; }
.card .value { font-size: 25px; font-weight: 650; line-height: 1.3; font-variant-numeric: tabular-nums; }
.card .note { color: var(--soft); font-size: 12.5px; min-height: 1.5em; }
.grid { display: grid; gap: 16px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr));
  align-items: start; margin-bottom: 16px; }
.grid > div { min-width: 0; }
figure { margin: 0 0 16px; padding: 14px; }
.grid figure { margin: 0; }
figure svg { display: block; width: 100%; height: auto; }
figure svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; }
.panel { overflow-x: auto; margin-bottom: 16px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 7px 14px; border-bottom: 1px solid var(--line); vertical-align: top; }
.grid th, .grid td { padding: 7px 9px; }
tr:last-child > * { border-bottom: 0; }
thead th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap; }
.facts th { width: 34%; font-weight: 500; color: var(--soft); overflow-wrap: anywhere; }
.facts td { overflow-wrap: anywhere; }
summary { cursor: pointer; font-size: 18px; font-weight: 700; margin: 36px 0 12px; }
.note { color: var(--soft); font-size: 13px; }
@media (max-width: 900px) { .card { flex-basis: calc(25% - 12px); } }
@media (max-width: 600px) {
  main { padding: 20px 10px; }
  .card { flex-basis: calc(50% - 12px); }
  figure { padding: 8px; }
  figure.wide svg text { font-size: 13px !important; }
  table { font-size: 12px; }
  table.many { font-size: 2.2vw; }
  th, td, .grid th, .grid td { padding: 6px 3px; overflow-wrap: break-word; }
}
@media print { body { background: #fff; } figure, .card, .panel { break-inside: avoid; } }
"""
CARD_COLUMNS = 6
"""Largest number of cards in a row."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Policy by which a browser loads nothing for the page, even if a value contained a reference."""
MANY_COLUMNS = 6
"""Number of columns above which a table has smaller text on narrow screens."""
_NUMBER = re.compile(r"-?[\d,]*\.?\d+(e[+-]?\d+)?(%| [KMGT]?i?B)?|\N{EN DASH}")


@dataclass(frozen=True)
class Card:
    """One headline number."""

    label: str
    value: str | None
    """None if it was not measured."""
    note: str = ""
    """Further words below the value."""

    def html(self) -> str:
        """Return the card as HTML."""
        return (
            f'<div class="card"><div class="label">{escape(self.label)}</div>'
            f'<div class="value">{escape(self.value or "")}</div>'
            f'<div class="note">{escape(self.note)}</div></div>'
        )


def card_block(cards: Sequence[Card]) -> str:
    """Lay out the cards that have a value in rows of equal length; the last row stretches."""
    shown = [card.html() for card in cards if card.value is not None]
    num_rows = math.ceil(len(shown) / CARD_COLUMNS)
    columns = math.ceil(len(shown) / num_rows) if shown else 1
    return f'<div class="cards" style="--columns: {columns}">{"".join(shown)}</div>'


def page(title: str, subtitle: str, state: str, body: Sequence[str], *, style: str = "") -> str:
    """Return a whole document.

    Args:
        title: title of the page.
        subtitle: line below the title.
        state: state of the run, at the end of this line.
        body: parts of the page as HTML; empty parts are left out.
        style: CSS of these parts.
    """
    described = " \N{MIDDLE DOT} ".join(escape(part) for part in (subtitle, state) if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}{style}</style>\n</head>\n<body>\n<main>\n"
        f"<header><h1>{escape(title)}</h1><p>{described}</p></header>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def section(title: str, content: str) -> str:
    """Return a section with a heading; empty without content."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def details(title: str, content: str) -> str:
    """Return a section that opens at a click; empty without content."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>" if content else ""


def note(text: str) -> str:
    """Return a line in small print."""
    return f'<p class="note">{escape(text)}</p>'


def figure_block(description: str, svg: str | None, *, wide: bool = False) -> str:
    """Return a figure in a frame; empty without a figure.

    Args:
        description: text for people who cannot see the figure.
        svg: SVG text, which is trusted because this program drew it; None for no figure.
        wide: whether the figure takes the width of the page.
    """
    if svg is None:
        return ""
    labelled = svg.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)
    attribute = " class=wide" if wide else ""
    return f"<figure{attribute}>{labelled}</figure>"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; columns of numbers are aligned right, and a table without rows is empty."""
    if not rows:
        return ""
    attributes = []
    for column in range(len(titles)):
        is_numeric = all(_NUMBER.fullmatch(row[column]) for row in rows)
        attributes.append(' class="number"' if is_numeric else "")
    head = "".join(
        f'<th scope="col"{attribute}>{escape(title)}</th>'
        for title, attribute in zip(titles, attributes, strict=True)
    )
    lines = []
    for row in rows:
        cells = "".join(
            f"<td{attribute}>{escape(cell)}</td>"
            for cell, attribute in zip(row, attributes, strict=True)
        )
        lines.append(f"<tr>{cells}</tr>")
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    many = " class=many" if len(titles) > MANY_COLUMNS else ""
    return f'<div class="panel"><table{many}>{body}</table></div>'


def definition_table(pairs: Iterable[tuple[str, object]]) -> str:
    """Return a table of names and values; empty without pairs."""
    rows = [
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(as_text(value))}</td></tr>'
        for name, value in pairs
    ]
    if not rows:
        return ""
    return f'<div class="panel"><table class="facts"><tbody>{"".join(rows)}</tbody></table></div>'


def as_number(value: object) -> float | None:
    """Return a finite number as a float; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def or_nan(value: object) -> float:
    """Return a finite number as a float; NaN for any other value."""
    number = as_number(value)
    return math.nan if number is None else number


def first_number(*values: object) -> float | None:
    """Return the first of the values that is a finite number; None if none is."""
    for value in values:
        number = as_number(value)
        if number is not None:
            return number
    return None


def formatted(value: float | None, pattern: str) -> str | None:
    """Return a number in the form of a pattern of ``str.format``; None for None."""
    return None if value is None else pattern.format(value)


def si(value: float | None) -> str | None:
    """Return a number with a decimal prefix, such as ``12.3 k``; None for None."""
    units = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"))
    return None if value is None else _scaled(value, units, "{:.3g}")


def binary_bytes(value: float | None) -> str | None:
    """Return a size such as ``4 KiB``; None for None."""
    return None if value is None else size_text(value)


def size_text(num_bytes: float) -> str:
    """Return a size such as ``4 KiB``."""
    units = ((1 << 40, " TiB"), (1 << 30, " GiB"), (1 << 20, " MiB"), (1 << 10, " KiB"))
    return _scaled(num_bytes, units, "{:.0f} B")


def _scaled(value: float, units: Iterable[tuple[float, str]], small: str) -> str:
    """Return a value with three digits, or with all digits before the point, in its largest unit.

    Args:
        value: value in the basic unit.
        units: sizes and names of larger units, the largest first.
        small: pattern for a value below all of them.
    """
    for size, unit in units:
        if abs(value) >= size:
            share = value / size
            digits = f"{share:.3g}" if abs(share) < 999.5 else f"{share:.0f}"
            return digits + unit
    return small.format(value)


def as_text(value: object) -> str:
    """Return any value as text for a table."""
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(as_text, value))
    return str(value)
