"""Damaged FASTA files are refused in a message or read in full, and never leave anything half done."""

from __future__ import annotations

import codecs
import gzip
import re
from pathlib import Path

import pyarrow as pa

from seqlm.proteins.alphabet import decode, encode
from seqlm.proteins.data.fasta import CONTROL_CHARACTER
from seqlm.proteins.data.prepare import Execution, prepare
from seqlm.proteins.data.sources import ProteinFiles
from seqlm.proteins.inference.records import read_proteins
from seqlm.proteins.reading.chains import Complex, default_names
from seqlm.proteins.reading.rejects import Reject
from seqlm.training.data.manifest import Manifest
from tests.fuzz.mutation import mutated

SEEDS = (
    b">a one\nMKV\nLA\n>b\nGG\n",
    b">a\r\nMKV\r\nLA\r\n>b\r\nGG\r\n",
    b"\n\n>a\n\nmkvla*\n\n>b\tx\n G\tG\n*\n",
    b"\xef\xbb\xbf> a \nMKVLAXBZUO\n>\xc3\xa4\nGGJ",
    "".join(
        f">sp|P{n:05}|X some protein OS=E. coli\n{'MKVLAGILF' * (n + 1)}\n" for n in range(9)
    ).encode(),
    b">a\nMKV\n>a\nGG\n",
    b">\x1b[31mEVIL\x07\nMKV\n",
    b">a\nMKV|LAG\n>b\nMK:GG*:MA\n>c\nMKV\n",
)
"""Forms that are read, a repeated id, an id with control characters, and several chains."""
FRACTIONS = {"seed": 0, "validation_fraction": 0.2, "test_fraction": 0.1}
EXECUTION = Execution(workers=1, progress=False)


def expected_records(text: bytes) -> dict[str, str]:
    """Read a file in the plainest way: usable proteins by id, the first of each id.

    Each chain of a record with several is a protein.
    """
    records: dict[str, str] = {}
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError:
        decoded = text.removeprefix(codecs.BOM_UTF8).decode("cp1252", "replace")
    for record in ("\n" + decoded).split("\n>")[1:]:
        header, _, body = record.partition("\n")
        words = header.encode().split()
        name = words[0].decode() if words else ""
        texts = re.split("[|:]", re.sub("[ \t\r\n]", "", body.upper()))
        proteins = [text.removesuffix("*") for text in texts]
        is_usable = name and not CONTROL_CHARACTER.search(name) and not name.startswith(">")
        if is_usable and all(protein.isascii() and protein.isalpha() for protein in proteins):
            names = [f"{name}.{chain}" for chain in default_names(len(proteins))]
            for one, protein in zip(names if len(names) > 1 else [name], proteins, strict=True):
                records.setdefault(one, protein)
    return records


def proteins_of(folder: Path) -> dict[str, str]:
    found = {}
    for shard in folder.glob("*/*.arrow"):
        with pa.memory_map(str(shard)) as source:
            table = pa.ipc.open_stream(source).read_all()
        found |= dict(
            zip(table["id"].to_pylist(), map(decode, table["tokens"].to_pylist()), strict=True)
        )
    return found


def test_prepared_or_refused(rounds, tmp_path: Path) -> None:
    for chance in rounds(200):
        text = mutated(chance.choice(SEEDS), chance)
        check_prepared(text, text, tmp_path / "a.fasta")


def test_prepared_or_refused_gzip(rounds, tmp_path: Path) -> None:
    for chance in rounds(100):
        text = chance.choice(SEEDS)
        packed = gzip.compress(text, mtime=0)
        content = chance.choice(
            (mutated(packed, chance), packed + packed, packed + bytes(chance.randint(0, 9)))
        )
        text = text * 2 if content == packed + packed else text
        check_prepared(content, text, tmp_path / "a.fasta.gz")


def check_prepared(content: bytes, text: bytes, path: Path) -> None:
    path.write_bytes(content)
    out = path.parent / "out"
    try:
        manifest = prepare(ProteinFiles([path]), out, execution=EXECUTION, **FRACTIONS)
    except ValueError as error:
        told = str(error)
        assert str(path) in told and len(told) < 3000, told
        assert not any(CONTROL_CHARACTER.search(line) for line in told.split("\n")), told
    else:
        expected = {
            name: decode(encode(protein)) for name, protein in expected_records(text).items()
        }
        assert Manifest.load(out) == manifest
        found = proteins_of(out)
        assert manifest.records == len(found)
        assert set(found.values()) == set(expected.values()) and found.items() <= expected.items()
        for file in sorted(out.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        out.rmdir()
    path.unlink()
    assert list(path.parent.iterdir()) == []


def test_inference_tells_every_record(rounds, tmp_path: Path) -> None:
    """Bad records are reported; the others are those that preparation reads."""
    path = tmp_path / "a.fasta"
    for chance in rounds(400):
        path.write_bytes(mutated(chance.choice(SEEDS), chance))
        try:
            read = list(
                read_proteins([str(path)], tmp_path, id_column="id", sequence_column="sequence")
            )
        except ValueError as error:
            assert not CONTROL_CHARACTER.search(str(error)) and str(path) in str(error)
            continue
        assert read
        for record in read:
            if isinstance(record, Reject):
                assert not CONTROL_CHARACTER.search(record.reason) and record.where.startswith(
                    f"{path}:"
                )
            else:
                chains = record.chains if isinstance(record, Complex) else [record]
                assert chains and all(len(chain.tokens) for chain in chains)
                assert not CONTROL_CHARACTER.search(record.id)
