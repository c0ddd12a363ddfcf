"""Bad records: listed, counted and left out; too many of them stop the preparation once."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqlm.proteins.data.prepare import Execution, is_prepared, prepare
from seqlm.proteins.data.sources import ProteinFiles
from seqlm.proteins.reading.policies import POLICIES, Kind
from seqlm.runs.run_file import load_config
from seqlm.training.data.limits import Limits
from seqlm.training.data.manifest import SPLITS, Manifest

SMALL = Limits(block_bytes=700, piece_bytes=3000, shard_bytes=20_000, batch_tokens=2500)
BAD = {
    "stop": (b">stop\nMKV*LA\n", "inner stop"),
    "gap": (b">gap\nMK\nV-LA\n", "gap"),
    "empty": (b">empty\n\n", "empty"),
    "digit": (b">digit\nMK1\n", "character"),
    "unnamed": (b">\nMKV\n", "no id"),
    "control": (b">\x1bx\nMKV\n", "control character"),
}


def run(paths: list[Path], out: Path, *, share: float = 0.01, **changes: Any) -> Manifest:
    settings: dict[str, Any] = dict(workers=1, progress=False, limits=SMALL)
    return prepare(
        ProteinFiles(paths),
        out,
        seed=1,
        validation_fraction=0.2,
        test_fraction=0.1,
        max_rejected_share=share,
        execution=Execution(**settings | changes),
    )


def listed(folder: Path) -> list[dict[str, str]]:
    with (folder / "rejects.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def with_bad(path: Path, records: dict[str, str], bad: list[bytes]) -> Path:
    """A file with bad records between the others."""
    texts = [f">{name} x\n{text}\n".encode() for name, text in records.items()]
    step = len(texts) // len(bad)
    for number, record in enumerate(bad):
        texts.insert(number * (step + 1), record)
    path.write_bytes(b"".join(texts))
    return path


def test_each_kind_is_listed_and_the_others_are_used(
    tmp_path: Path, proteins, read_split, capsys
) -> None:
    records = proteins(60)
    source = with_bad(tmp_path / "a.fasta", records, [record for record, _ in BAD.values()])
    manifest = run([source], tmp_path / "out", progress=True)
    arrived = dict(row for split in SPLITS for row in read_split(tmp_path / "out", split))
    assert arrived == records
    assert manifest.rejected == {kind: 1 for _, kind in BAD.values()}
    assert Manifest.load(tmp_path / "out").rejected == manifest.rejected
    rows = listed(tmp_path / "out")
    lines = [int(row["where"].removeprefix(f"{source}:")) for row in rows]
    assert lines == sorted(lines)
    assert len(lines) == 6
    # The places are those of the records, or of the line with the wrong character.
    text = source.read_bytes().split(b"\n")
    assert text[lines[0] - 1] == b"MKV*LA"
    assert text[lines[1] - 1] == b"V-LA"
    assert text[lines[2] - 1] == b">empty"
    told = capsys.readouterr().err
    last = told.rstrip().split("\n")[-1]
    assert last.startswith(
        "proteins: read 66, used 60, left out 6 (1 with a stop inside, 1 with gaps, "
    )
    assert last.endswith(f"): {tmp_path}/out/rejects.csv")
    assert "1 with a stop inside, first:" in told
    run([source], tmp_path / "out", progress=True)
    assert capsys.readouterr().err.rstrip().split("\n")[-1] == last


def test_ten_are_always_allowed_and_eleven_are_a_matter_of_the_share(
    tmp_path: Path, proteins
) -> None:
    ten = with_bad(tmp_path / "ten.fasta", proteins(50), [b">s\nM*K\n"] * 10)
    assert run([ten], tmp_path / "ten", share=0).rejected == {"inner stop": 10}
    eleven = with_bad(tmp_path / "eleven.fasta", proteins(89), [b">s\nM*K\n"] * 11)
    with pytest.raises(ValueError) as stopped:
        run([eleven], tmp_path / "out", share=0.1)
    message = str(stopped.value)
    assert (
        "11 of 100 records cannot be used; allowed are 10 (10, or data.max_rejected_share=0.1 of"
        in message
    )
    assert message.count("'*' in record s is not a residue") == 3
    assert not (tmp_path / "out").exists()
    assert run([eleven], tmp_path / "out", share=0.11).rejected == {"inner stop": 11}


def test_all_kinds_are_named_by_one_run(tmp_path: Path, proteins) -> None:
    bad = [record for record, _ in BAD.values()]
    repeated = [b">p1\nMKVL\n"] * 3
    source = with_bad(tmp_path / "a.fasta", proteins(60), [*bad * 2, *repeated])
    with pytest.raises(ValueError) as stopped:
        run([source], tmp_path / "out")
    assert "15 of 75 records cannot be used" in str(stopped.value)
    for _, kind in BAD.values():
        assert f"{POLICIES[Kind(kind)].counted(2)}, first:" in str(stopped.value)
    assert "3 repeated ids, first:" in str(stopped.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.fasta"]


def test_the_list_is_the_same_for_all_workers_and_blocks(tmp_path: Path, proteins) -> None:
    bad = [record for record, _ in BAD.values()] + [b">p3\nMKVL\n", b">p9\nLAG\n"]
    one = with_bad(tmp_path / "one.fasta", proteins(80), bad)
    two = with_bad(tmp_path / "two.fasta", proteins(80, prefix="q"), [b">p4\nMK\n", bad[0]])
    found = []
    for name, changes in {
        "a": {},
        "b": {"workers": 3},
        "c": {"limits": replace(SMALL, block_bytes=1 << 20)},
        "d": {"limits": replace(SMALL, block_bytes=1 << 20, block_records=7)},
    }.items():
        run([one, two], tmp_path / name, share=0.2, **changes)
        found.append((tmp_path / name / "rejects.csv").read_bytes())
    assert found[0].count(b"\n") == 11
    assert found == found[:1] * 4


def test_the_first_record_with_an_id_is_used(tmp_path: Path, proteins, read_split) -> None:
    """A left-out record also hides no other one with its sequence, although its id is the smallest."""
    one = tmp_path / "one.fasta"
    two = tmp_path / "two.fasta"
    one.write_text(">a\nMKVLAGG\n>b\nLLLLAGG\n")
    two.write_text(">z\nMMMMAGG\n>a\nMMMMAGG\n>a\nMKVLAGG\n")
    manifest = run([one, two], tmp_path / "out")
    arrived = dict(row for split in SPLITS for row in read_split(tmp_path / "out", split))
    assert arrived == {"a": "MKVLAGG", "b": "LLLLAGG", "z": "MMMMAGG"}
    assert manifest.rejected == {"repeated id": 2}
    assert [source.name for source in manifest.sources] == ["one.fasta", "two.fasta"]
    assert listed(tmp_path / "out")[0] == {
        "where": f"{two}:3",
        "kind": "repeated id",
        "reason": f"the id a was used before, at {one}:1; rename or remove one",
    }


def test_a_bad_record_does_not_take_its_id(tmp_path: Path, read_split) -> None:
    source = tmp_path / "a.fasta"
    source.write_text(">a\n\n>a\nMKVLAGG\n>b\nMKVL\n")
    assert run([source], tmp_path / "out").rejected == {"empty": 1}


@pytest.mark.parametrize("text", [">a\nM*K\n", ">p1\nMKV\n", ">x\n\n>p2\nMKVV\n"])
def test_a_file_without_a_usable_record_stops_the_preparation(
    tmp_path: Path, proteins, write_fasta, text: str
) -> None:
    good = write_fasta(tmp_path / "good.fasta", proteins(50))
    (tmp_path / "bad.fasta").write_text(text)
    with pytest.raises(ValueError, match=r"bad.fasta: none of its \d records can be used"):
        run([good, tmp_path / "bad.fasta"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_without_bad_records_has_no_list(
    tmp_path: Path, proteins, write_fasta, capsys
) -> None:
    records = proteins(50)
    records["copy"] = records["p3"]
    manifest = run([write_fasta(tmp_path / "a.fasta", records)], tmp_path / "out", progress=True)
    assert manifest.rejected == {}
    assert not (tmp_path / "out" / "rejects.csv").exists()
    last = capsys.readouterr().err.rstrip().split("\n")[-1]
    assert last == "proteins: read 51, used 50, left out 1 (1 repeated sequence)"


def test_the_share_is_part_of_the_identity(tmp_path: Path, proteins, write_fasta) -> None:
    source = write_fasta(tmp_path / "a.fasta", proteins(50))
    run([source], tmp_path / "out")
    with pytest.raises(ValueError, match=r"max_rejected_share \(there 0.01, wanted 0.5\)"):
        run([source], tmp_path / "out", share=0.5)
    paths = set()
    for share in ("", "0.01", "0.5", "0"):
        changes = [f"data.max_rejected_share={share}"] if share else []
        config = load_config("esm2_8m_sample", [f"data.source=[{source}]", *changes])
        paths.add(config.data.path)
        config = replace(config, data=replace(config.data, path=str(tmp_path / "out")))
        fractions = replace(config.data, seed=1, validation_fraction=0.2, test_fraction=0.1)
        manifest = Manifest.load(tmp_path / "out")
        assert manifest.sources[0].name == "a.fasta"
        local = replace(config, data=replace(fractions, source=("a.fasta",)))
        assert is_prepared(local) == (share in ("", "0.01"))
    assert len(paths) == 3
    with pytest.raises(ValueError, match=r"data\.max_rejected_share: got 1\.5; allowed 0 to 1"):
        load_config("esm2_8m_sample", ["data.max_rejected_share=1.5"])
