"""Write the tables of the pages about JSON, docs/json*.md: ``python -m tools.documents.json_page``."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from tools.json_forms import (
    CAPACITY_COMMANDS,
    COMMANDS,
    COMMON_STATUSES,
    DEPLOYMENT_COMMANDS,
    OPERATION_COMMANDS,
    RUN_COMMANDS,
    WITHOUT_JSON,
    Command,
)

DEPLOYMENT_PAGE = Path("docs/json.md")
OPERATION_PAGE = Path("docs/json-operations.md")
CAPACITY_PAGE = Path("docs/json-capacity.md")
AFTER_ERRORS = (
    "Unknown options, and errors of a file system, end them without a document. The message is then on "
    "standard error alone."
)
EVERY_COMMAND = {**COMMANDS, **RUN_COMMANDS}
START = "<!-- commands -->"
END = "<!-- /commands -->"


def _form(name: str) -> Command:
    """Return a command without what distinguishes it from others in its section."""
    return replace(EVERY_COMMAND[name], word="", typed="")


def _sections(commands: Mapping[str, Command]) -> list[str]:
    return [_section(list(names), form) for form, names in groupby(commands, _form)]


def _section(names: list[str], form: Command) -> str:
    rows = {f"exit status {status}": text for status, text in form.statuses.items()}
    rows |= {f"`{path}`": text for path, text in form.fields.items()}
    typed = "\n".join(_typed(name) for name in names)
    table = _table("exit status or field of `result`", "meaning", rows)
    return f"### {', '.join(names)}\n\n{typed}\n\n{table}"


def _typed(name: str) -> str:
    command = EVERY_COMMAND[name]
    typed = command.typed or f"make {name} --silent ARGS=--json"
    program = " ".join(filter(None, ("python -m", command.module, command.word)))
    return f"* `{typed}`, or `{program} --json`"


def _table(key: str, value: str, rows: Mapping[str, str]) -> str:
    lines = [f"| {key} | {value} |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in rows.items()]
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """Return the text of each page, with current sections between its marks."""
    common = _table("exit status", "meaning", {f"{n}": text for n, text in COMMON_STATUSES.items()})
    deployment = [
        f"## Exit statuses of every command\n\n{common}",
        "## Commands",
        *_sections(DEPLOYMENT_COMMANDS),
    ]
    operation = [
        *_sections(OPERATION_COMMANDS),
        f"## Commands of seqlm\n\n{AFTER_ERRORS}",
        *_sections(RUN_COMMANDS),
        f"## Targets without JSON\n\n{_table('target', 'reason', WITHOUT_JSON)}",
    ]
    return {
        DEPLOYMENT_PAGE: _with_sections(DEPLOYMENT_PAGE, deployment),
        OPERATION_PAGE: _with_sections(OPERATION_PAGE, operation),
        CAPACITY_PAGE: _with_sections(CAPACITY_PAGE, _sections(CAPACITY_COMMANDS)),
    }


def _with_sections(page: Path, sections: list[str]) -> str:
    before, _, rest = page.read_text().partition(START)
    _, _, after = rest.partition(END)
    return "\n\n".join([f"{before}{START}", *sections, f"{END}{after}"])


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
