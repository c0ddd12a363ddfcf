"""Effects of variants, without training: ``python -m workloads.esm2.inference.variants --config RUN.yaml``.

Masked marginals (Meier et al. 2021): each mutated position is masked alone in the wild type, and a variant's
score is the sum over its positions of log p(mutant) - log p(wild type). Below 0 the model finds the mutant
less likely. Multiple mutations are taken as independent of each other, as there.

``inference.mutations`` is a CSV of mutations; without it every single mutant of each protein is scored, and
each protein gets a heat map. The result has the columns id, mutation and score; what does not fit its protein
is listed with its reason in the rejects, and the rest is scored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..alphabet import MASK
from ..config import RunConfig
from ..model import PackedEsm
from ..processes import Processes
from .engine import MASKED_LOGITS, Array, Engine
from .heat_map import draw_heat_maps
from .job import load, records_of, run_parts, settings_of, start
from .mutations import Asked, Variant, Wanted, all_single_mutants, parse_variant, read_mutations
from .output import Output
from .records import Protein, Reject

MASKED_RESIDUES_PER_PART = 50
"""A protein of L residues with all its positions masked is L proteins to the model; parts are as much
smaller than those of embeddings."""


def variants(config: RunConfig, here: Processes) -> None:
    """Scores of the variants asked for.

    Raises:
        ValueError: for a model, an input or an output that cannot be used, or mutations without a protein.
    """
    inference = config.inference
    output = Output(config, "variants")
    loaded = load(config, here)
    if not isinstance(loaded.engine.model, PackedEsm):
        raise ValueError(
            f"{loaded.name} has been fine-tuned for a task and predicts no residues; give a masked language "
            "model, as facebook/esm2_t6_8M_UR50D or the model of a pre-training run"
        )
    asked = None if inference.mutations is None else read_mutations(Path(inference.mutations))

    def wild_types() -> Iterator[Protein | Reject]:
        return _asked_for(records_of(config), asked)

    table = Table(asked, loaded.engine)
    settings = settings_of(config, loaded, "variants")
    settings["mutations_fingerprint"] = None if asked is None else asked.fingerprint
    run_parts(
        config,
        here,
        output=output,
        settings=settings,
        records=wild_types,
        tabulate=table.of,
        part_residues=max(1, inference.part_residues // MASKED_RESIDUES_PER_PART),
    )
    if here.is_first and asked is None:
        draw_heat_maps(output.path)


class Table:
    """Rows of variants for proteins."""

    def __init__(self, asked: Wanted | None, engine: Engine) -> None:
        self._asked, self._engine = asked, engine

    def of(self, proteins: list[Protein]) -> pa.Table:
        """Columns id, mutation, score."""
        names: list[str] = []
        found: list[str] = []
        scores: list[float] = []
        for protein in proteins:
            wanted = self._variants(protein)
            if wanted:
                scores += masked_marginals(self._engine, protein.tokens, wanted)
            names += [protein.id] * len(wanted)
            found += [variant.name for variant in wanted]
        columns = [pa.array(names, pa.string()), pa.array(found, pa.string()), pa.array(scores, pa.float32())]
        return pa.table(columns, names=["id", "mutation", "score"])

    def _variants(self, protein: Protein) -> list[Variant]:
        if self._asked is None:
            return all_single_mutants(protein)
        rows = self._asked.of(protein.id)
        return [variant for row in rows if isinstance(variant := _parsed(row, protein), Variant)]


def masked_marginals(
    engine: Engine, protein: npt.NDArray[np.uint8], wanted: Sequence[Variant]
) -> list[float]:
    """Scores of variants of one protein, in nats.

    Args:
        engine: with a masked language model.
        protein: the wild type's token ids, (L,), without CLS and EOS.
        wanted: substitutions that fit it.
    """
    places = sorted({substitution.place for variant in wanted for substitution in variant.substitutions})
    masked = [_masked(protein, place, engine.max_residues) for place in places]
    logits = dict(zip(places, engine.run(masked, MASKED_LOGITS), strict=True))
    log_p = {place: _log_softmax(found) for place, found in logits.items()}
    return [
        float(sum(log_p[s.place][s.mutant] - log_p[s.place][s.wild] for s in variant.substitutions))
        for variant in wanted
    ]


def _masked(protein: npt.NDArray[np.uint8], place: int, max_residues: int) -> npt.NDArray[np.uint8]:
    """The protein with a residue masked; of a long one, the window with the residue at its middle."""
    start = min(max(0, place - max_residues // 2), max(0, len(protein) - max_residues))
    window = protein[start : start + max_residues].copy()
    window[place - start] = MASK
    return window


def _log_softmax(logits: Array) -> npt.NDArray[np.float64]:
    """Over the whole vocabulary, as the loss of the model's training has it."""
    shifted = logits.astype(np.float64) - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def _asked_for(records: Iterable[Protein | Reject], asked: Wanted | None) -> Iterator[Protein | Reject]:
    """The proteins, each followed by the mutations that do not fit it; at the end those without a protein."""
    known, count = set[str](), 0
    for record in records:
        yield record
        if isinstance(record, Reject) or asked is None:
            continue
        known.add(record.id)
        count += 1
        for row in asked.of(record.id):
            if isinstance(problem := _parsed(row, record), Reject):
                yield problem
    if asked is None:
        return
    if count > 1 and asked.names_no_protein:
        raise ValueError(
            f"inference.mutations: a row has no id, and the input has {count} proteins; give the table a "
            "column id, filled in every row"
        )
    for row in asked.of_others(known):
        yield Reject(row.where, f"no protein {row.protein} in the input")


def _parsed(row: Asked, protein: Protein) -> Variant | Reject:
    try:
        return parse_variant(row.name, protein)
    except ValueError as error:
        return Reject(row.where, str(error))


if __name__ == "__main__":
    start("variants", variants)
