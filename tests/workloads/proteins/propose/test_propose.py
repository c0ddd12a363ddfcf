"""The command ``propose`` and ``Model.propose`` on a tiny model: tables, page, errors and repetition."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import seqlm
from seqlm.commands.inference import is_small
from seqlm.proteins.propose.command import propose
from seqlm.proteins.reading.policies import POLICIES, Decision, Reader
from seqlm.runs.inference_commands import INFERENCE_COMMANDS
from seqlm.runs.run_file import load_config
from seqlm.training.processes import Processes, processes

WILD = "MKVLAGGWTY"
WILD_ID = "x</script><b>"
ROUND = """variant,fitness,sd,batch
K2A,1.5,0.1,1
K2A,1.7,0.1,2
V3L:L4A,0.2,0.1,1
p.Gly6Ala,2.5,0.2,1
WT,1.0,0.1,1
"""


@pytest.fixture(scope="module")
def here() -> Iterator[Processes]:
    with processes() as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wild.fasta").write_text(f">{WILD_ID}\n{WILD}\n")
    (tmp_path / "round1.csv").write_text(ROUND)
    return tmp_path


Run = Callable[..., list[dict[str, str]]]
"""Function from changes of the run file to the rows of the table."""


@pytest.fixture
def run(folder: Path, tiny_model: Path, run_file: Path, here: Processes) -> Run:
    def start(*overrides: str) -> list[dict[str, str]]:
        return rows_of(folder, tiny_model, run_file, here, *overrides)

    return start


def rows_of(
    folder: Path, tiny_model: Path, run_file: Path, here: Processes, *overrides: str
) -> list[dict[str, str]]:
    given = [
        "train.precision=fp32",
        f"inference.model={tiny_model}",
        f"inference.input=[{folder}/wild.fasta]",
        f"inference.output={folder}/next.csv",
        "propose.number=6",
        "propose.positions=[2-6]",
        "propose.max_mutations=2",
        *overrides,
    ]
    propose(load_config(run_file, given), here)
    with (folder / "next.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


LATER = ("propose.measured=[round1.csv]", "propose.direction=higher")


@pytest.mark.long
def test_the_first_round_ranks_by_the_model_and_adds_controls(
    folder: Path, tiny_model: Path, run: Run
) -> None:
    rows = run("propose.controls=[WT,K2A]", "propose.diversity=0")
    assert [row["round"] for row in rows] == ["1"] * 8
    scores = [float(row["predicted"]) for row in rows[:6]]
    assert scores == sorted(scores, reverse=True)
    assert [row["variant"] for row in rows[6:]] == ["WT", "K2A"]
    assert {row["reason"] for row in rows[6:]} == {"control"}
    assert "K2A" not in {row["variant"] for row in rows[:6]}
    assert all(row["uncertainty"] == "" and len(row["sequence"]) == len(WILD) for row in rows)
    table = seqlm.load(str(tiny_model), precision="fp32").variants(
        WILD, [row["variant"] for row in rows]
    )
    for row, score in zip(rows, table["score"], strict=True):
        assert float(row["zero_shot"]) == pytest.approx(score, rel=1e-4, abs=1e-4)


@pytest.mark.long
def test_a_later_round_repeats_byte_for_byte(
    folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / "round1.csv").open("a") as stream:
        stream.write("K2Z,1,1,1\nA2K,1,1,1\nK2C,,1,1\nK2C,high,1,1\nK2del,1,1,1\n")
    later = (*LATER, "propose.noise_column=sd", "propose.round_column=batch")
    rows = run(*later)
    said = capsys.readouterr().out
    assert "measurements: read 10, used 5, left out 5" in said
    assert {row["round"] for row in rows} == {"3"}
    assert {"K2A", "V3L:L4A", "G6A", "WT"}.isdisjoint(row["variant"] for row in rows)
    assert all(float(row["uncertainty"]) > 0 for row in rows)
    assert len({row["sequence"] for row in rows}) == 6
    page = (folder / "next.html").read_text()
    assert WILD_ID not in page and "x&lt;/script&gt;&lt;b&gt;" in page
    assert page.count("<svg") == 3 and "best measured" in page
    files = ("next.csv", "next.html", "next.csv.rejects.csv")
    before = {name: (folder / name).read_bytes() for name in files}
    with pytest.raises(ValueError, match=r"set inference\.overwrite=true"):
        run(*later)
    run(*later, "inference.overwrite=true")
    assert {name: (folder / name).read_bytes() for name in files} == before


@pytest.mark.long
@pytest.mark.parametrize(
    "features", ["[embedding]", "[one_hot,zero_shot,embedding]", "[zero_shot]"]
)
def test_features_are_chosen(features: str, folder: Path, run: Run) -> None:
    rows = run(*LATER, f"propose.features={features}")
    assert len(rows) == 6 and all(float(row["uncertainty"]) > 0 for row in rows)


@pytest.mark.long
def test_python_proposes_as_the_command_does(folder: Path, tiny_model: Path, run: Run) -> None:
    (folder / "round1.csv").write_text("variant,fitness\nK2A,1.5\nK2A,1.7\nG6A,2.5\nWT,1\n")
    rows = run(*LATER)
    model = seqlm.load(str(tiny_model), precision="fp32")
    table = model.propose(
        WILD,
        {"K2A": [1.5, 1.7], "G6A": 2.5, "WT": 1.0},
        direction="higher",
        number=6,
        positions=("2-6",),
        max_mutations=2,
    )
    assert table["variant"].tolist() == [row["variant"] for row in rows]
    predicted = [float(row["predicted"]) for row in rows]
    assert table["predicted"].tolist() == pytest.approx(predicted, rel=1e-4)
    repeated = pd.Series([1.5, np.float32(1.7), 2.5, 1], index=["K2A", "K2A", "G6A", "WT"])
    again = model.propose(
        WILD, repeated, direction="higher", number=6, positions=("2-6",), max_mutations=2
    )
    assert again["variant"].tolist() == table["variant"].tolist()
    with pytest.raises(ValueError, match="expected one chain as text"):
        model.propose(f"{WILD}|{WILD}")
    for measured, options, message in (
        ({"K2A": 1.0}, {}, "direction: got None"),
        ({"A2K": 1.0, "M1K": 2.0}, {"direction": "higher"}, "has K at position 2, not A"),
        ({"K2A": float("nan")}, {"direction": "higher"}, "expected a finite number"),
        ({"K2A": "1.5"}, {"direction": "higher"}, "'K2A' has '1.5'; expected a finite number"),
        ({"K2A": [1.0, None]}, {"direction": "higher"}, "'K2A' has 'None'; expected a finite"),
        ({"K2A": []}, {"direction": "higher"}, "'K2A' has no value; leave it out"),
        ({2: 1.0}, {"direction": "higher"}, "got the name 2; expected names as text"),
        (
            [("K2A", 1.0)],
            {"direction": "higher"},
            "measured: got list; expected values by the names",
        ),
        ({}, {"first_position": "x"}, "first_position: got 'x'; expected a whole number"),
        ({}, {"number": 0}, "propose.number: got 0; allowed from 1"),
        ({}, {"positions": ("99",)}, r"positions 1 to 10 \(first_position is"),
        ({}, {"batch": "nowhere"}, "propose.batch: "),
        ({}, {"nowhere": 1}, "propose.nowhere: no such field"),
    ):
        with pytest.raises(ValueError, match=message):
            model.propose(WILD, measured, **options)


@pytest.mark.long
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("inference.score=mutant_marginals",), "which needs a pass of the model for each variant"),
        (("propose.positions=[99]",), "the protein has the positions 1 to 10"),
        (("propose.controls=[A2K]",), "propose.controls: A2K: x</script><b> has K at position 2"),
        (("propose.controls=[K2del]",), "inserts or deletes residues"),
        ((*LATER, "propose.value_column=nowhere"), "nowhere"),
        (("propose.measured=[missing.csv]", "propose.direction=higher"), "missing.csv"),
    ],
)
def test_mistakes_are_named(
    overrides: tuple[str, ...], message: str, folder: Path, run: Run
) -> None:
    with pytest.raises(ValueError, match=message):
        run(*overrides)


@pytest.mark.long
def test_the_input_is_one_protein(folder: Path, run: Run) -> None:
    (folder / "wild.fasta").write_text(f">a\n{WILD}\n>b\n{WILD}\n")
    with pytest.raises(ValueError, match=r"got several proteins, such as"):
        run()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("propose.measured=[round1.csv]", "propose.direction: got null with propose.measured"),
        ("propose.exploration=-1", "propose.exploration: got -1"),
        ("propose.shapes=[]", "set at least one of each"),
        ("propose.number=0", "propose.number"),
    ],
)
def test_the_run_file_is_checked(override: str, message: str, run_file: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load_config(run_file, [override])


def test_one_process_chooses_for_inputs_of_any_kind(run_file: Path) -> None:
    given = ["inference.input=[wild.fasta.gz]", "propose.measured=[missing.csv]"]
    config = load_config(run_file, [*given, "propose.direction=higher"])
    assert is_small(INFERENCE_COMMANDS["propose"], config)
    assert not is_small(INFERENCE_COMMANDS["embed"], config)


ODD_ROWS = {
    "fields": "K2C,1,1,1,1\n",
    "no label": "K2C,,1,1\n",
    "bad label": "K2C,high,1,1\n",
    "bad mutation": "K2Z,1,1,1\n",
    "other protein": "C2K,1,1,1\n",
}


@pytest.mark.long
@pytest.mark.parametrize("kind", ODD_ROWS)
def test_odd_rows_are_treated_as_the_policy_table_says(
    kind: str, folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "round1.csv").write_text(ROUND + ODD_ROWS[kind])
    run(*LATER)
    [policy] = [policy for found, policy in POLICIES.items() if found == kind]
    assert policy.decisions[Reader.PROPOSE] is Decision.REJECT
    assert f"left out 1 ({policy.counted(1)})" in capsys.readouterr().out
    (folder / "round1.csv").write_text(ROUND.splitlines()[0] + "\n" + ODD_ROWS[kind])
    with pytest.raises(ValueError, match=r"propose\.measured: nothing can be used"):
        run(*LATER, "inference.overwrite=true")


@pytest.mark.long
def test_a_table_without_rows_is_the_first_round(
    folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run()
    (folder / "round1.csv").write_text(ROUND.splitlines()[0] + "\n")
    assert run(*LATER, "inference.overwrite=true") == first
    assert "propose.measured has no rows, so this is the first round" in capsys.readouterr().out


@pytest.mark.long
def test_rows_of_another_protein_are_left_out(
    folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "round1.csv").write_text(
        f"id,variant,fitness\n{WILD_ID},K2A,1\n{WILD_ID},G6A,2\nother,K2C,3\n"
    )
    run(*LATER)
    assert "left out 1 (1 without a protein)" in capsys.readouterr().out
