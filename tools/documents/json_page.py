"""Write the tables of docs/json.md: ``python -m tools.documents.json_page``."""

from collections.abc import Mapping
from pathlib import Path

from tools.json_forms import COMMANDS, COMMON_STATUSES, OTHER_FORMS, WITHOUT_JSON, Command

PAGE = Path("docs/json.md")
START = "<!-- commands -->"
END = "<!-- /commands -->"


def page_sections() -> str:
    """Return the generated part of the page."""
    sections = [_section(name, command) for name, command in COMMANDS.items()]
    common = _table("exit status", "meaning", {f"{n}": text for n, text in COMMON_STATUSES.items()})
    without = _table("target", "reason", WITHOUT_JSON)
    others = _table("target", "form", OTHER_FORMS)
    return "\n\n".join(
        [
            f"## Exit statuses of every command\n\n{common}",
            "## Commands",
            *sections,
            f"## Commands of seqlm\n\nTheir forms are not versioned yet.\n\n{others}",
            f"## Commands without JSON\n\n{without}",
        ]
    )


def _section(name: str, command: Command) -> str:
    typed = command.typed or f"make --silent {name} ARGS=--json"
    program = " ".join(filter(None, ("python -m", command.module, command.word)))
    statuses = {str(status): text for status, text in command.statuses.items()}
    fields = {f"`{path}`": text for path, text in command.fields.items()}
    return "\n\n".join(
        [
            f"### {name}",
            f"`{typed}`, or `{program} --json`",
            _table("exit status", "meaning", statuses),
            _table("field of `result`", "meaning", fields),
        ]
    )


def _table(key: str, value: str, rows: Mapping[str, str]) -> str:
    lines = [f"| {key} | {value} |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in rows.items()]
    return "\n".join(lines)


def with_sections(page: str) -> str:
    """Return the text of the page with current sections between its marks."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n{page_sections()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_sections(PAGE.read_text()))
