"""Every form of data.source becomes local files, or an error that says what is allowed."""

from __future__ import annotations

import bz2
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqlm.proteins.data.sources import PROTEINS
from seqlm.training.data import transfer
from seqlm.training.data.transfer import FetchError, fetch


@pytest.mark.parametrize(
    ("location", "message"),
    [
        (
            "http://example.org/p.fa",
            r"http://example.org/p.fa: unencrypted http://example.org/p.fa is refused.*use https://",
        ),
        ("https://example.org/", "the address names no file"),
        ("https://example.org/a/..%2F..%2Fetc", "the address names no file"),
        ("ftp://example.org/p.fa", r"ftp://... cannot be read; allowed are https:// and s3://"),
        ("gs://bucket/p.fa", "cannot be read; allowed are"),
        ("s3://", "not an S3 address; write s3://bucket/key"),
        ("s3://bucket", "not an S3 address"),
        ("no/such.fasta", r"no/such.fasta: no such file or folder, .* \(looked in /"),
    ],
)
def test_a_location_that_cannot_be_used_says_what_can(
    location: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(FetchError, match=message):
        fetch(location, tmp_path / "downloads", PROTEINS)
    assert not (tmp_path / "downloads").exists()


def test_the_names_stand_for_uniprots_addresses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def remember(remote: Any, *_: object, **__: object) -> Path:
        asked.append(remote.address)
        return tmp_path

    monkeypatch.setattr(transfer, "download", remember)
    for name in ("uniref50", "uniref90", "idmapping"):
        fetch(name, tmp_path, PROTEINS)
    release = "https://ftp.uniprot.org/pub/databases/uniprot/current_release"
    assert asked == [
        f"{release}/uniref/uniref50/uniref50.fasta.gz",
        f"{release}/uniref/uniref90/uniref90.fasta.gz",
        f"{release}/knowledgebase/idmapping/idmapping_selected.tab.gz",
    ]


def test_the_sample_is_the_embedded_one(tmp_path: Path) -> None:
    assert PROTEINS.sample.parts[-5:] == (
        "seqlm",
        "proteins",
        "data",
        "sample",
        "proteins.fasta.gz",
    )
    moved = replace(PROTEINS, sample=tmp_path / "proteins.fasta.gz")
    with pytest.raises(FetchError, match=r"sample: .* is missing; restore it with: git checkout"):
        fetch("sample", tmp_path, moved)
    moved.sample.write_bytes(b"")
    assert fetch("sample", tmp_path, moved) == [moved.sample]


@pytest.mark.parametrize("name", ["a.fasta", "a.fa.gz", "idmapping.tab.gz", "members.tsv", "a.txt"])
def test_a_file_that_is_named_passes_whatever_its_suffix(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("")
    assert fetch(str(tmp_path / name), tmp_path, PROTEINS) == [tmp_path / name]


def test_a_folder_gives_its_fasta_by_content(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proteins = ("b.fa", "a.FASTA.gz", "c.faa", "braker.aa", "x.pep", "any")
    for name in (*proteins, "._b.fa"):
        (tmp_path / name).write_text("\n>p\nMK\n")
    (tmp_path / "packed.faa.bz2").write_bytes(bz2.compress(b">p\nMK\n"))
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "d.fasta").write_text("id\tsequence\np\tMK\n")
    (tmp_path / "e.pdf").write_bytes(b"%PDF-1.7")
    (tmp_path / "empty.fasta").write_text("")
    (tmp_path / "sub.fasta").mkdir()
    found = fetch(str(tmp_path), tmp_path, PROTEINS)
    assert [path.name for path in found] == sorted([*proteins, "packed.faa.bz2"])
    note = capsys.readouterr().err
    assert "read 7 FASTA or structure files, left out 4 others" in note
    for left_out in (
        "notes.txt (not FASTA or structure)",
        "d.fasta (not FASTA or structure)",
        "e.pdf (a PDF document",
        "empty.fasta",
    ):
        assert left_out in note


def test_a_folder_without_fasta_lists_its_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    expected = r"no FASTA or structure file .* Left out: notes.txt \(not FASTA or structure\)\."
    with pytest.raises(FetchError, match=expected):
        fetch(str(tmp_path), tmp_path, PROTEINS)


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.fa").symlink_to(tmp_path / "gone")
    with pytest.raises(FetchError, match="a link to nothing"):
        fetch(str(tmp_path / "x.fa"), tmp_path, PROTEINS)
