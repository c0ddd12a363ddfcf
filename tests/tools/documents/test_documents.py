"""Links of all documents lead somewhere, and their make targets exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tools.documents.document_commands import REPOSITORY

DOCUMENTS = [
    REPOSITORY / "README.md",
    REPOSITORY / "AGENTS.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
]


def anchors(document: Path) -> set[str]:
    """Return anchors as GitHub derives them from headings."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(document: Path) -> list[tuple[str, str]]:
    """Path and anchor of each link within the repository."""
    found = re.findall(r"\]\((?!https?://)([^)#\s]*)#?([^)\s]*)\)", document.read_text())
    return [(path, anchor) for path, anchor in found]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for path, anchor in links(document):
        target = document.parent / path if path else document
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_figures_of_the_readme_are_measured() -> None:
    """Ratios in the README's table stand in the generated tables of the pages about performance."""
    ratios = re.findall(
        r"^\| [^|]* \| (\d+(?:\.\d+)?x)", (REPOSITORY / "README.md").read_text(), re.MULTILINE
    )
    pages = ("docs/performance.md", "docs/inference-performance.md")
    measured = re.findall(
        r"<!-- acceptance:\w+ -->(.*?)<!-- /",
        "".join((REPOSITORY / page).read_text() for page in pages),
        re.DOTALL,
    )
    assert len(ratios) == 3 and all(f" {ratio} " in "".join(measured) for ratio in ratios)


def test_there_are_links_within_and_between_documents() -> None:
    found = [link for document in DOCUMENTS for link in links(document)]
    assert any(not path and anchor for path, anchor in found)
    assert any(path and anchor for path, anchor in found)
