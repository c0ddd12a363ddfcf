"""Training on cluster members: each epoch visits every cluster once, with a member drawn anew."""

from __future__ import annotations

import numpy as np
import pytest

from seqlm.proteins.alphabet import STANDARD_RESIDUES, encode
from seqlm.proteins.data.prepare import Execution, prepare
from seqlm.proteins.data.sources import ProteinFiles
from seqlm.proteins.model.protein_packs import ProteinStream
from seqlm.training.packing import PackShape
from seqlm.training.records import RecordSplit

NUM_CLUSTERS = 60
MEMBERS = 4


@pytest.fixture(scope="module")
def sequences() -> dict[str, tuple[str, bytes]]:
    """Cluster and tokens of every member; cluster c has 1 to 4 members."""
    rng = np.random.default_rng(0)
    members = {}
    for cluster in range(NUM_CLUSTERS):
        for member in range(1 + cluster % MEMBERS):
            text = "".join(rng.choice(list(STANDARD_RESIDUES), size=30 + 5 * member))
            members[f"UR90_{cluster}_{member}"] = (f"UR50_{cluster}", text.encode())
    return members


@pytest.fixture(scope="module")
def split(
    sequences: dict[str, tuple[str, bytes]], tmp_path_factory: pytest.TempPathFactory
) -> RecordSplit:
    folder = tmp_path_factory.mktemp("members")
    fasta = folder / "members.fasta"
    table = folder / "membership.tsv"
    fasta.write_text(
        "".join(f">{name}\n{text.decode()}\n" for name, (_, text) in sequences.items())
    )
    table.write_text("".join(f"{name}\t{cluster}\n" for name, (cluster, _) in sequences.items()))
    prepare(
        ProteinFiles([fasta], table),
        folder / "out",
        seed=0,
        validation_fraction=0.2,
        test_fraction=0,
        execution=Execution(workers=1, progress=False),
    )
    return RecordSplit(folder / "out", "train")


def drawn(split: RecordSplit, epoch: int) -> dict[int, bytes]:
    """Tokens of the member that stands for each cluster in an epoch."""
    stream = ProteinStream(split, PackShape.of(split, 256, 126), seed=0)
    return {
        unit: split.token_ids(place).tobytes()
        for pack in stream.epoch(epoch)
        for unit, place in zip(pack.units.tolist(), pack.places, strict=True)
    }


def test_every_cluster_once_with_one_of_its_members(
    split: RecordSplit, sequences: dict[str, tuple[str, bytes]]
) -> None:
    cluster_of = {encode(text).tobytes(): cluster for cluster, text in sequences.values()}
    assert split.num_units < split.num_records
    first = drawn(split, 0)
    assert sorted(first) == list(range(split.num_units))
    clusters = [cluster_of[tokens] for tokens in first.values()]
    assert len(set(clusters)) == split.num_units, "no cluster twice"
    assert first == drawn(split, 0)
    for epoch in range(1, 4):
        again = drawn(split, epoch)
        assert {unit: cluster_of[tokens] for unit, tokens in again.items()} == dict(
            zip(first, clusters, strict=True)
        )


def test_all_members_are_drawn_in_time(
    split: RecordSplit, sequences: dict[str, tuple[str, bytes]]
) -> None:
    seen = {tokens for epoch in range(40) for tokens in drawn(split, epoch).values()}
    assert len(seen) == split.num_records
