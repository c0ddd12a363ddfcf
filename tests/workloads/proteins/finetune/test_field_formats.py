"""Labelled files in the formats of the field, without naming a column; the files are made up."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqlm.proteins.config import SplitConfig, TaskConfig
from seqlm.proteins.finetune.labelled import LabelledSplit
from seqlm.proteins.finetune.prepare import is_prepared, prepare_table
from seqlm.proteins.reading.columns import format_of
from seqlm.proteins.reading.field_formats import FIELD_FORMATS
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.config import DataConfig
from seqlm.training.data.manifest import IGNORED, SPLITS
from seqlm.training.records import Split

NAMES: tuple[Split, ...] = ("train", "validation", "test")
FLIP = """sequence,target,set,validation
MKTA,1.5,train,
MKTC,2.5,train,
MKTD,3.5,train,True
MKTE,4.5,test,
"""
PROTEINGYM = """mutant,mutated_sequence,DMS_score,DMS_score_bin,fold_random_5,fold_modulo_5,fold_contiguous_5
A1G,GKTA,0.1,0,0,0,0
A1C,CKTA,0.2,1,1,1,0
K2D,ADTA,0.3,0,2,2,1
K2E:A1F,FETA,0.4,1,3,3,2
T3H,AKHA,0.5,0,4,4,3
T3W,AKWA,0.6,1,0,0,4
"""
INDELS = """mutated_sequence,DMS_score,DMS_score_bin
GKTA,0.1,0
GKTAA,0.2,1
GKA,0.3,0
"""
BIOTRAINER = """>p0 TARGET=Nucleus SET=train VALIDATION=False
MKTA
>p1 TARGET=Cytoplasm SET=train VALIDATION=False
MKTC
>p2 TARGET=Nucleus SET=train VALIDATION=True
MKTD
>p3 TARGET=Cytoplasm SET=test VALIDATION=False
MKTE
"""
NETSURFP = """input,dssp3,dssp8,disorder,cb513_mask
MKTA,HHEC,HHEC,0.0 1.0 1.0 1.0,1.0 1.0 1.0 1.0
MKTC,CCEH,CCEH,1.0 1.0 1.0 0.0,1.0 1.0 1.0 1.0
MKTD,HCEH,HCEH,1.0 1.0 1.0 1.0,1.0 0.0 1.0 1.0
MKTE,CCEH,CCEH,1.0 1.0 1.0 1.0,1.0 1.0 1.0 1.0
"""
DEEPLOC = (
    ",ACC,Kingdom,Partition,Membrane,Cytoplasm,Nucleus,Extracellular,Cell membrane,Mitochondrion,Plastid,"
    "Endoplasmic reticulum,Lysosome/Vacuole,Golgi apparatus,Peroxisome,Sequence\n"
    "0,Q0,Metazoa,0,1.0,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,MKTA\n"
    "1,Q1,Metazoa,1,0.0,0.0,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,MKTC\n"
    "2,Q2,Fungi,3,0.0,0.0,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,MKTD\n"
    "3,Q3,Fungi,4,1.0,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,MKTE\n"
)


def written(folder: Path, text: str, name: str = "table") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def run_of(folder: Path, table: Path, kind: Any, **task: Any) -> RunFile:
    return RunFile(
        name="t",
        data=DataConfig(
            path=str(folder / "prepared"),
            downloads=str(folder / "downloads"),
            validation_fraction=0.3,
            test_fraction=0.3,
        ),
        task=TaskConfig(kind=kind, table=(str(table),), **task),
    )


def ids(folder: Path) -> list[list[str]]:
    """Ids of each split."""
    found = []
    for name in NAMES:
        split = LabelledSplit(folder / "prepared", name)
        found.append(sorted(split.ids(np.arange(split.num_units))))
    return found


def residue_labels(folder: Path) -> dict[str, list[int]]:
    """Classes of the residues of each protein."""
    found = {}
    for name in NAMES:
        split = LabelledSplit(folder / "prepared", name)
        units = np.arange(split.num_units)
        found |= {
            key: classes.tolist()
            for key, classes in zip(split.ids(units), split.token_labels(units), strict=True)
        }
    return found


SEQUENCE_FORMATS: dict[str, tuple[str, dict[str, Any], list[list[str]], str, list[str]]] = {
    "FLIP": (FLIP, {"kind": "regression"}, [["1", "2"], ["3"], ["4"]], "FLIP", ["target"]),
    "ProteinGym": (
        PROTEINGYM,
        {"kind": "regression"},
        [["K2E:A1F", "T3H", "T3W"], ["K2D"], ["A1C", "A1G"]],
        "ProteinGym assay of substitutions",
        ["DMS_score"],
    ),
    "ProteinGym, a binary task": (
        PROTEINGYM,
        {"kind": "binary"},
        [["K2E:A1F", "T3H", "T3W"], ["K2D"], ["A1C", "A1G"]],
        "ProteinGym assay of substitutions",
        ["DMS_score_bin"],
    ),
    "ProteinGym, other folds": (
        PROTEINGYM,
        {"kind": "regression", "split": SplitConfig(column="fold_modulo_5", fold=4)},
        [["A1C", "K2D", "K2E:A1F"], ["A1G", "T3W"], ["T3H"]],
        "fold of the test: 4",
        ["DMS_score"],
    ),
    "biotrainer": (
        BIOTRAINER,
        {"kind": "multiclass"},
        [["p0", "p1"], ["p2"], ["p3"]],
        "FASTA with headers of biotrainer",
        ["TARGET"],
    ),
    "DeepLoc": (
        DEEPLOC,
        {"kind": "binary"},
        [["Q0", "Q1"], ["Q2"], ["Q3"]],
        "DeepLoc 2",
        ["Membrane"],
    ),
    "names of SaProtHub": (
        "protein,label,stage\nMKTA,x,train\nMKTC,y,train\nMKTD,x,valid\nMKTE,y,test\n",
        {"kind": "multiclass"},
        [["1", "2"], ["3"], ["4"]],
        "labels: label, split: stage",
        ["label"],
    ),
    "well-known names": (
        "Entry;Sequence;Label;Split\nP0;MKTA;x;train\nP1;MKTC;y;Train\nP2;MKTD;x;valid\nP3;MKTE;y;TEST\n",
        {"kind": "multiclass"},
        [["P0", "P1"], ["P2"], ["P3"]],
        "labels: Label, split: Split",
        ["Label"],
    ),
}


@pytest.mark.parametrize("case", SEQUENCE_FORMATS)
def test_formats_name_their_own_columns_and_splits(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text, task, expected, announced, labels = SEQUENCE_FORMATS[case]
    run = run_of(tmp_path, written(tmp_path, text), **task)
    prepare_table(run)
    assert ids(tmp_path) == expected
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: /")]
    assert announced in line
    facts = json.loads((tmp_path / "prepared" / "labels.json").read_text())
    assert facts["columns"] == labels
    assert is_prepared(run)
    prepare_table(run)
    assert "already prepared" in capsys.readouterr().err


def test_deeploc_has_its_compartments_for_several_labels(tmp_path: Path) -> None:
    text = DEEPLOC.replace("0,Q0,Metazoa,0,1.0,1.0,0.0", "0,Q0,Metazoa,0,1.0,0.0,0.0")
    run = run_of(tmp_path, written(tmp_path, text), "multilabel")
    with pytest.raises(
        ValueError, match=r"no example of Cytoplasm = 1, Nucleus = 0|no example of"
    ) as refused:
        prepare_table(run)
    assert "Cytoplasm = 1" in str(refused.value), "all ten compartments are labels"


def test_indels_have_no_folds_and_say_how_to_split(tmp_path: Path) -> None:
    table = written(tmp_path, INDELS)
    with pytest.raises(ValueError, match="nothing says which proteins are held out"):
        prepare_table(run_of(tmp_path, table, "regression"))
    rows = "".join(f"MK{'A' * n}{'WC'[n % 2] * n},{n},{n % 2}\n" for n in range(1, 40))
    table = written(tmp_path, "mutated_sequence,DMS_score,DMS_score_bin\n" + rows)
    split = SplitConfig(column="DMS_score_bin", validation=("1",))
    manifest = prepare_table(run_of(tmp_path, table, "regression", split=split))
    assert [manifest.splits[name].records for name in NAMES] == [19, 20, 0]


def test_a_published_split_without_validation_gets_one_from_its_training_proteins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"M{'ACDEFGHIKL'[n // 10]}{'ACDEFGHIKL'[n % 10]},{n},train" for n in range(90)]
    rows += [f"W{'ACDEFGHIKL'[n]},{n},test" for n in range(10)]
    table = written(tmp_path, "\n".join(["sequence,target,set", *rows]))
    prepare_table(run_of(tmp_path, table, "regression"))
    train, validation, test = ids(tmp_path)
    assert len(train) + len(validation) == 90 and 10 <= len(validation) <= 50
    assert len(test) == 10, "the published test split stays"
    assert "no validation split; a hash of the sequences chose" in capsys.readouterr().err


def test_copies_in_a_held_out_split_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FLIP's splits of binding residues and of Cas9 have some."""
    rows = [
        "MKTA,1,train",
        "MKTC,2,train",
        "MKTA,3,test",
        "MKTC,4,val",
        "MKTD,5,train",
        "MKTW,6,val",
    ]
    table = written(tmp_path, "\n".join(["sequence,target,set", *rows]))
    prepare_table(run_of(tmp_path, table, "regression"))
    assert ids(tmp_path) == [["5"], ["4", "6"], ["3"]]
    printed = capsys.readouterr().err
    assert "2 protein(s) are left out, because their sequences are in a held-out split" in printed
    assert "proteins: read 6, used 4, left out 2 (2 repeated sequences)" in printed


def test_a_class_that_a_published_split_holds_out_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["MKTA,x,train", "MKTC,y,train", "MKTD,x,val", "MKTE,rare,test"]
    table = written(tmp_path, "\n".join(["sequence,target,set", *rows]))
    prepare_table(run_of(tmp_path, table, "multiclass"))
    assert "no example of rare, so it cannot be learned" in capsys.readouterr().err
    named = run_of(tmp_path / "b", table, "multiclass", classes=("x", "y", "rare"))
    with pytest.raises(ValueError, match="no example of rare; leave the class"):
        prepare_table(named)


def residue_fasta(folder: Path) -> dict[str, str]:
    """Proteins, labels and masks in three files of FASTA, as FLIP's secondary structure."""
    sequences = {"a": "MKTA", "b": "MKTC", "c": "MKTD", "d": "MKTEF"}
    labels = {"a": "HHEC", "b": "CCEH", "c": "HCEH", "d": "CXEHH"}
    masks = {"a": "0111", "b": "1110", "c": "1111", "d": "10110"}
    sets = {
        "a": "SET=train VALIDATION=False",
        "b": "SET=train VALIDATION=False",
        "c": "SET=train VALIDATION=True",
        "d": "SET=test VALIDATION=False",
    }

    def fasta(name: str, texts: dict[str, str], words: dict[str, str]) -> str:
        records = [f">{key} {words.get(key, '')}\n{text}\n" for key, text in texts.items()]
        path = folder / name
        path.write_bytes(gzip.compress("".join(records).encode()))
        return str(path)

    return {
        "table": fasta("sequences", sequences, {}),
        "labels": fasta("sampled", dict(reversed(labels.items())), sets),
        "mask": fasta("mask", masks, {}),
    }


def test_masked_residues_have_no_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = residue_fasta(tmp_path)
    table = Path(files.pop("table"))
    prepare_table(run_of(tmp_path, table, "residue", **files))
    assert ids(tmp_path) == [["a", "b"], ["c"], ["d"]]
    # Classes are C, E and H; the X of d is masked.
    assert residue_labels(tmp_path) == {
        "a": [IGNORED, 2, 1, 0],
        "b": [0, 0, 1, IGNORED],
        "c": [2, 0, 1, 2],
        "d": [0, IGNORED, 1, 2, IGNORED],
    }
    printed = capsys.readouterr().err
    assert "labels of residues: 17, of which 0 (0.0%) have none and 4 (23.5%) are masked" in printed
    assert "labels: read 17, used 13, left out 4 (4 masked)" in printed
    test = LabelledSplit(tmp_path / "prepared", "test")
    assert test.num_masked(np.arange(1), 5).tolist() == [2]
    assert test.num_masked(np.arange(1), 4).tolist() == [1], "a protein that is cropped"


def test_netsurfp_applies_all_its_masks_and_asks_which_labels(tmp_path: Path) -> None:
    header, *rows = NETSURFP.splitlines()
    parts = ("train", "train", "validation", "test")
    lines = [f"{row},{part}" for row, part in zip(rows, parts, strict=True)]
    table = written(tmp_path, "\n".join([f"{header},part", *lines]))
    split = SplitConfig(column="part")
    with pytest.raises(ValueError, match=r"'dssp3', 'dssp8' may .* task\.label_columns"):
        prepare_table(run_of(tmp_path, table, "residue", split=split))
    prepare_table(run_of(tmp_path, table, "residue", label_columns=("dssp3",), split=split))
    assert residue_labels(tmp_path) == {
        "1": [IGNORED, 2, 1, 0],
        "2": [0, 0, 1, IGNORED],
        "3": [2, IGNORED, 1, 2],
        "4": [0, 0, 1, 2],
    }


IN_HEADERS = """>a TARGET=HHEC SET=train MASK=0111
MKTA
>b TARGET=CCEH SET=train MASK=1111
MKTC
>c TARGET=HCEH SET=val MASK=1110
MKTD
>d TARGET=CCEH SET=test MASK=1111
MKTE
>e TARGET=CCEHH SET=test2
MKTFW
>f SET=pred
MKTG
"""
"""FASTA of biotrainer with labels and masks of residues in the headers, and several test sets."""


@pytest.mark.parametrize("test", ["test", "test2"])
def test_labels_and_masks_in_headers_and_further_test_sets(
    tmp_path: Path, test: str, capsys: pytest.CaptureFixture[str]
) -> None:
    split = SplitConfig() if test == "test" else SplitConfig(column="SET", test=(test,))
    prepare_table(run_of(tmp_path, written(tmp_path, IN_HEADERS), "residue", split=split))
    assert ids(tmp_path) == [["a", "b"], ["c"], ["d" if test == "test" else "e"]]
    assert residue_labels(tmp_path)["a"] == [IGNORED, 2, 1, 0]
    assert "proteins: read 6, used 4, left out 2 (2 of another set)" in capsys.readouterr().err


def test_pairs_of_proteins_are_refused(tmp_path: Path) -> None:
    table = written(tmp_path, ">a INTERACTOR=b TARGET=1 SET=train\nMKTA\n")
    with pytest.raises(ValueError, match="has pairs of proteins"):
        prepare_table(run_of(tmp_path, table, "binary"))


def own_table(masks: list[str]) -> str:
    labels = ["HHEC", "CCEH", "HCEH", "CCEH"]
    splits = ["train", "train", "validation", "test"]
    rows = [
        f"p{number},MKT{'ACDE'[number]},{labels[number]},{mask},{splits[number]}"
        for number, mask in enumerate(masks)
    ]
    return "\n".join(["id,sequence,structure,resolved,split", *rows]) + "\n"


@pytest.mark.parametrize("mask", ["0110", "0 1 1 0", "0.0 1.0 1.0 0.0", "False True True False"])
def test_tables_of_our_own_format_have_masks(tmp_path: Path, mask: str) -> None:
    table = written(tmp_path, own_table([mask, "", mask, "1111"]))
    prepare_table(run_of(tmp_path, table, "residue", label_columns=("structure",)))
    assert residue_labels(tmp_path) == {
        "p0": [IGNORED, 2, 1, IGNORED],
        "p1": [0, 0, 1, 2],
        "p2": [IGNORED, 0, 1, IGNORED],
        "p3": [0, 0, 1, 2],
    }


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ("011", "record p0: 3 items in the mask 'resolved' for 4 residues"),
        ("01x1", "record p0: 'x' in the mask 'resolved'; allowed are 1 for a residue that counts"),
    ],
)
def test_masks_that_do_not_fit_are_refused(tmp_path: Path, mask: str, message: str) -> None:
    table = written(tmp_path, own_table([mask, "", "", ""]))
    with pytest.raises(ValueError, match=message):
        prepare_table(run_of(tmp_path, table, "residue", label_columns=("structure",)))


def test_masks_belong_to_residues(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"task\.mask_columns: got a mask .* kind binary"):
        load_config("membrane_sample", ["task.mask_columns=[resolved]"])


def test_labels_beside_fasta_name_the_same_proteins(tmp_path: Path) -> None:
    table = written(tmp_path, ">a\nMKTA\n>b\nMKTC\n", "proteins")
    mask = written(tmp_path, ">a\n0111\n>c\n0111\n", "mask")
    labels = written(tmp_path, "id,label,split\na,HHHH,train\nb,EEEE,test\n", "labels")
    with pytest.raises(ValueError) as refused:
        prepare_table(run_of(tmp_path, table, "residue", labels=str(labels), mask=str(mask)))
    assert "labels:3: record b has no row in mask (column 'id')" in str(refused.value)
    assert "mask:3: no protein c in proteins" in str(refused.value)


def test_fasta_without_labels_is_refused_whatever_its_name(tmp_path: Path) -> None:
    table = written(tmp_path, ">a\nMKTA\n", "proteins.csv")
    with pytest.raises(ValueError, match=r"is FASTA, which has no labels; .* task\.labels"):
        prepare_table(run_of(tmp_path, table, "binary"))


REFUSALS = [
    ("accession,hgvs_nt,hgvs_pro,score\nu#1,NA,p.His1Arg,0.3\n", "MaveDB.*inference.mutations"),
    (
        "Entry\tEntry Name\tLength\nP1\tX_Y\t3\n",
        "UniProt, without sequences; add the column Sequence",
    ),
    ("sequence_id\tsequence\tv_call\tj_call\nr\tACGT\tx\ty\n", "'sequence' is DNA"),
    (
        "sequence_alignment_aa_heavy,sequence_alignment_aa_light,y\nMK,MT,1\n",
        "'sequence_alignment_aa_heavy', 'sequence_alignment_aa_light' may all have the sequence",
    ),
    ("id,sequence,label,split\na,MK,1,train\nb,MT,0,pool\n", "has 'pool', which names no split"),
    ("id,sequence,label,target,split\na,MK,1,0,train\n", "none of the 1 proteins"),
    (
        "id,sequence,score,fitness,split\na,MK,1,0,train\n",
        "'score', 'fitness' may all have the label",
    ),
    (
        "id,sequence,value,split\na,MK,1,train\n",
        "label_columns: got none.* It has 'value', 'split'",
    ),
]


@pytest.mark.parametrize(("text", "message"), REFUSALS)
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare_table(run_of(tmp_path, written(tmp_path, text), "binary"))


@pytest.mark.parametrize(
    ("column", "is_numbered"), [("id", False), ("uniprot_id", True), ("Entry", True)]
)
def test_repeated_ids_of_a_guessed_column_number_the_rows(
    tmp_path: Path, column: str, is_numbered: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables of variants name the protein in each row."""
    rows = ["P1,MKTA,1,train", "P1,MKTC,2,train", "P1,MKTD,3,validation", "P1,MKTE,4,test"]
    table = written(tmp_path, "\n".join([f"{column},sequence,label,split", *rows]))
    run = run_of(tmp_path, table, "regression")
    if not is_numbered:
        with pytest.raises(ValueError, match="the id P1 was used before"):
            prepare_table(run)
        return
    prepare_table(run)
    assert ids(tmp_path) == [["1", "2"], ["3"], ["4"]]
    assert f"the ids in '{column}' repeat, so rows are numbered" in capsys.readouterr().err
    named = run_of(tmp_path / "b", table, "regression", id_column=column)
    with pytest.raises(ValueError, match="the id P1 was used before"):
        prepare_table(named)


def test_rows_are_numbered_through_all_files(tmp_path: Path) -> None:
    first = written(tmp_path, "sequence,label,split\nMKTA,1,train\nMKTC,2,train\n", "a")
    second = written(tmp_path, "seq;label;split\nMKTD;3;validation\nMKTE;4;test\n", "b")
    run = run_of(tmp_path, first, "regression")
    task = {"kind": "regression", "table": [str(first), str(second)]}
    run = load_config(
        "membrane_sample", [f"task={json.dumps(task)}", f"data.path={tmp_path / 'prepared'}"]
    )
    prepare_table(run)
    assert ids(tmp_path) == [["1", "2"], ["3"], ["4"]]


FOLD_MISTAKES = [
    ({"column": "fold_modulo_5", "fold": 7}, r"task\.split\.fold: got 7; the column .* has 0"),
    ({"column": "mutant", "fold": 1}, "the values of folds are whole numbers"),
    ({"fold": 1, "validation": ("2",)}, "fold chooses the values of validation and test"),
]


@pytest.mark.parametrize(("split", "message"), FOLD_MISTAKES)
def test_folds_that_do_not_exist_are_refused(
    tmp_path: Path, split: dict[str, Any], message: str
) -> None:
    run = run_of(tmp_path, written(tmp_path, PROTEINGYM), "regression", split=SplitConfig(**split))
    with pytest.raises(ValueError, match=message):
        prepare_table(run)


def test_data_of_earlier_versions_are_still_prepared(tmp_path: Path) -> None:
    """Earlier versions recorded the names ``id`` and ``sequence``, and had no masks."""
    table = written(tmp_path, own_table(["", "", "", ""]).replace("resolved", "other"))
    split = SplitConfig(column="split", validation=("validation",), test=("test",))
    run = run_of(tmp_path, table, "residue", label_columns=("structure",), split=split)
    prepare_table(run)
    path = tmp_path / "prepared" / "labels.json"
    facts = json.loads(path.read_text())
    facts["task"] |= {"id_column": "id", "sequence_column": "sequence"}
    for name in ("mask_columns", "split.validation_column", "split.fold"):
        del facts["task"][name]
    path.write_text(json.dumps(facts))
    assert is_prepared(run)
    facts["task"]["id_column"] = "accession"
    path.write_text(json.dumps(facts))
    assert not is_prepared(run)


def test_every_format_is_recognised_by_what_it_needs() -> None:
    for one in FIELD_FORMATS:
        assert format_of(sorted(one.needs), in_fasta=one.in_fasta) is not None
    assert format_of(["id", "sequence", "label"]) is None
    assert len(SPLITS) == len(NAMES)
