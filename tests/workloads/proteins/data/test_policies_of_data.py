"""The preparation for pre-training does what the policy table says, for FASTA and for tables."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from seqlm.proteins.data.prepare import prepare_proteins
from seqlm.proteins.reading.policies import POLICIES, Decision, Kind, Reader, decision
from seqlm.runs.run_file import load_config
from seqlm.training.data.manifest import SPLITS
from tests.workloads.proteins.reading.observed import Observed, treatment, write_csv
from tests.workloads.proteins.reading.odd_inputs import (
    ODDITIES,
    OF_STRUCTURES,
    ONLY_TABLES,
    fasta_of,
)

KINDS = [
    kind
    for kind, policy in POLICIES.items()
    if Reader.DATA in policy.decisions and kind not in OF_STRUCTURES
]
CASES = [
    (kind, form)
    for kind in KINDS
    for form in ("fasta", "csv")
    if form == "csv" or kind not in ONLY_TABLES
]


def observe(kind: Kind, form: str, folder: Path, read_split, capsys) -> Observed:
    """Prepare an odd input."""
    oddity = ODDITIES[kind]
    if kind is Kind.NUCLEOTIDES:
        oddity = replace(oddity, alone=True)  # fewer than half of the records are a warning
    path = folder / f"input.{form}"
    if form == "fasta":
        path.write_text(fasta_of(oddity))
    else:
        records = [[record.id, record.sequence] for record in oddity.all_records]
        if oddity.extra_cells:
            records[-1] += oddity.extra_cells
        write_csv(path, [("id", "sequence"), *records])
    changes = [f"data.source=[{path}]", f"data.path={folder / 'out'}"]
    try:
        prepare_proteins(load_config("esm2_8m_sample", changes))
    except ValueError as error:
        assert not (folder / "out").exists()
        return Observed(Decision.STOP, str(error))
    found = [row for split in SPLITS for row in read_split(folder / "out", split)]
    # Letters outside the vocabulary, such as J, become <unk>.
    expected = oddity.equals.replace("J", "<unk>")
    by_place = sorted(found, key=lambda row: row[0] not in ("good0", "good1"))
    told = capsys.readouterr().err.rstrip().split("\n")[-1]
    if len(found) != len(oddity.all_records):
        return Observed(treatment(oddity, by_place, None), told)
    assert (oddity.records[-1].id, expected) in found
    is_same = oddity.records[-1].sequence == oddity.equals
    return Observed(Decision.USE if is_same else Decision.CLEAN, told)


@pytest.mark.parametrize(("kind", "form"), CASES)
def test_data(kind: Kind, form: str, tmp_path: Path, read_split, capsys) -> None:
    observed = observe(kind, form, tmp_path, read_split, capsys)
    assert observed.decision is decision(kind, Reader.DATA), observed.said
    if observed.decision is not Decision.REJECT:
        return
    assert f"left out 1 ({POLICIES[kind].counted(1)}): {tmp_path}/out/rejects.csv" in observed.said
    with (tmp_path / "out" / "rejects.csv").open(newline="") as file:
        (listed,) = csv.DictReader(file)
    assert listed["kind"] == kind.value
