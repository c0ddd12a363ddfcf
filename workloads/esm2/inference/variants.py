"""Score the effects of variants, without training (``seqlm variants``).

The scores are masked marginals (Meier et al. 2021). Each mutated position is masked alone in the wild type,
and a variant's score is the sum over its positions of log p(mutant) - log p(wild type). Below 0, the model
finds the mutant less likely. As in that paper, several mutations are taken as independent of each other.

``inference.mutations`` is a CSV of mutations. Without it, every single mutant of each protein is scored, and
each protein gets a heat map. The result has the columns id, mutation and score. Mutations that do not fit
their protein are listed in the rejects, each with its reason, and the others are scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from workloads.esm2.alphabet import MASK
from workloads.inference import check_head
from workloads.run_file import RunFile
from workloads.training.processes import Processes

from .engine import MASKED_LOGITS, Array, Engine
from .heat_map import draw_heat_maps
from .job import Command
from .mutations import Variant, all_single_mutants, asked_for, read_mutations
from .positions import write_positions
from .records import Protein, records_of

_SCHEMA = pa.schema([("id", pa.string()), ("mutation", pa.string()), ("score", pa.float32())])
MASKED_RESIDUES_PER_PART = 50
"""Factor by which parts are smaller than those of embeddings: a protein of L residues with each position
masked in turn is L proteins to the model."""


def variants(config: RunFile, here: Processes) -> None:
    """Write the scores of the requested variants.

    Raises:
        ValueError: if the model, the input, the output or the table of mutations cannot be used.
    """
    inference = config.inference
    command = Command(config, here, "variants")
    check_head("variants", command.model_name, command.engine.model.config.architectures)
    asked = None if inference.mutations is None else read_mutations(Path(inference.mutations))
    command.settings["mutations_fingerprint"] = None if asked is None else asked.fingerprint

    def wanted_of(protein: Protein) -> list[Variant]:
        if asked is None:
            return all_single_mutants(protein)
        return [found for found in asked.parsed(protein) if isinstance(found, Variant)]

    def residues_of(protein: Protein) -> int:
        return len(_places(wanted_of(protein))) * min(len(protein.tokens), config.model.max_residues)

    def tabulate(proteins: list[Protein]) -> pa.Table:
        rows: list[tuple[str, str, float]] = []
        for protein in proteins:
            wanted = wanted_of(protein)
            scores = masked_marginals(command.engine, protein.tokens, wanted) if wanted else []
            rows += [(protein.id, one.name, score) for one, score in zip(wanted, scores, strict=True)]
        return pa.table(list(zip(*rows, strict=True)) or [()] * 3, schema=_SCHEMA)

    command.run(
        tabulate,
        max(1, inference.part_residues // MASKED_RESIDUES_PER_PART),
        lambda: asked_for(records_of(config), asked),
        residues_of,
    )
    if here.is_first and asked is None:
        for picture in draw_heat_maps(command.output.path, command.model_name):
            print(f"wrote {picture}: heat map")
        for file, kind in write_positions(command.output.path, command.model_name):
            print(f"wrote {file}: {kind}")


def masked_marginals(
    engine: Engine, protein: npt.NDArray[np.uint8], wanted: Sequence[Variant]
) -> list[float]:
    """Return the scores of variants of one protein, in nats.

    Args:
        engine: engine with a masked language model.
        protein: token ids of the wild type, (L,), without CLS and EOS.
        wanted: variants that fit the protein.
    """
    log_p = _log_probabilities(engine, protein, _places(wanted))
    return [
        float(sum(log_p[s.place][s.mutant] - log_p[s.place][s.wild] for s in variant.substitutions))
        for variant in wanted
    ]


def pseudo_perplexity(engine: Engine, protein: npt.NDArray[np.uint8]) -> float:
    """Return exp of the mean of -log p of each residue, masked alone, for token ids (L,)."""
    log_p = _log_probabilities(engine, protein, range(len(protein)))
    return float(np.exp(-np.mean([log_p[place][token] for place, token in enumerate(protein.tolist())])))


def _log_probabilities(
    engine: Engine, protein: npt.NDArray[np.uint8], places: Sequence[int]
) -> dict[int, npt.NDArray[np.float64]]:
    """Return the log probabilities of the vocabulary at each of these places, which is masked alone."""
    masked = [_masked(protein, place, engine.max_residues) for place in places]
    answers = engine.run(masked, MASKED_LOGITS)
    return {place: _log_softmax(found) for place, found in zip(places, answers, strict=True)}


def _places(wanted: Sequence[Variant]) -> list[int]:
    return sorted({substitution.place for variant in wanted for substitution in variant.substitutions})


def _masked(protein: npt.NDArray[np.uint8], place: int, max_residues: int) -> npt.NDArray[np.uint8]:
    """Return the protein with one residue masked; of a long protein, the window around that residue."""
    start = min(max(0, place - max_residues // 2), max(0, len(protein) - max_residues))
    window = protein[start : start + max_residues].copy()
    window[place - start] = MASK
    return window


def _log_softmax(logits: Array) -> npt.NDArray[np.float64]:
    """Return log probabilities over the whole vocabulary, as the training loss has them."""
    shifted = logits.astype(np.float64) - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))
