"""Variants to measure next (``seqlm propose``): a CSV file for the laboratory, and a page.

The input is one protein. ``propose.measured`` has its measured variants. The same input, model and settings
give the same bytes on the same machine with the same versions.
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from seqlm.proteins.alphabet import FIRST_RESIDUE, NUM_STANDARD_RESIDUES, encode
from seqlm.proteins.config import ProposeConfig
from seqlm.proteins.inference.engine import EMBEDDING, Engine
from seqlm.proteins.inference.engine_probabilities import score_variants
from seqlm.proteins.inference.job import Command
from seqlm.proteins.inference.model_head import check_head
from seqlm.proteins.inference.records import Protein, records_of
from seqlm.proteins.inference.variant_scores import SCORES, score_of
from seqlm.proteins.mutations.edits import Edit, Variant
from seqlm.proteins.mutations.errors import MutationError
from seqlm.proteins.mutations.fitting import FIRST_POSITION, parse_variant
from seqlm.proteins.reading.rejects import Reject, write_rejects
from seqlm.runs.inference_commands import HTML, MASKED_LM
from seqlm.runs.run_file import RunFile
from seqlm.training.processes import Processes
from seqlm.training.strict_yaml import shown
from seqlm.training.whole_file import write_whole

from .campaign import Proposal, Round, ZeroShot, next_round
from .measured import Measured, no_values, read_measured
from .page import proposals_page
from .space import Space, space_of
from .surrogate import Floats, Singles

COLUMNS = ("variant", "sequence", "predicted", "uncertainty", "zero_shot", "round", "reason")
"""Columns of the table. ``predicted`` is in the units of the measured values. In the first round, it is the
score of the model, and there is no ``uncertainty``."""


def propose(config: RunFile, here: Processes) -> None:
    """Write the next variants to measure, and the page; the first process computes both.

    Raises:
        ValueError: if the model, the protein, the measured values or the output cannot be used, or no variant
            is left.
    """
    options = config.propose
    inference = config.inference
    check_score(inference.score)
    command = Command(config, here, "propose")
    check_head(
        "propose", command.model_name, command.engine.model.config.architectures or [MASKED_LM]
    )
    path = command.output.path
    page = Path(options.page or path.with_suffix(HTML))
    for file in (path, page):
        if file.exists() and not inference.overwrite:
            raise ValueError(
                f"{file} exists; name another inference.output, or set inference.overwrite=true"
            )
    if not here.is_first:
        return
    protein = _only_protein(config)
    measured = no_values()
    if options.measured:
        measured = read_measured(
            options, protein, inference.mutation_column, inference.first_position
        )
    found = proposals(
        command.engine, protein, measured, options, inference.score, inference.first_position
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _table(found.proposals, measured.num_rounds + 1))
    rejects = path.with_name(path.name + ".rejects.csv")
    if measured.rejects:
        write_rejects(rejects, measured.rejects)
    write_whole(page, proposals_page(protein.id, command.model_name, found, measured, options))
    how = "all" if found.is_complete else "a search among"
    print(f"chosen from {how} {found.num_variants:,} variants")
    print(f"wrote {path}: {len(found.proposals):,} variants of round {measured.num_rounds + 1}")
    print(f"wrote {page}: map, distribution and campaign")
    if options.measured:
        print(measured.counts.line(rejects if measured.rejects else None))


def proposals(
    engine: Engine,
    protein: Protein,
    measured: Measured,
    options: ProposeConfig,
    score: str,
    first_position: int,
    field: str = FIRST_POSITION,
) -> Round:
    """Return the next variants to measure.

    Args:
        engine: engine with a masked language model.
        protein: wild type.
        measured: measured variants.
        options: section of the run file.
        score: name of the score, a sum over mutations.
        first_position: number of the protein's first residue in names.
        field: name of that number for the user.

    Raises:
        ValueError: if a control or position does not fit the protein, or no variant is left.
    """
    controls = [_control(name, protein, first_position, field) for name in options.controls]
    space = space_of(
        protein.sequence,
        options.positions,
        options.residues,
        options.max_mutations,
        first_position,
        field,
    ).with_places([*measured.variants, *controls])

    def embed(sequences: Sequence[str]) -> Singles:
        return np.stack(engine.run([encode(one) for one in sequences], EMBEDDING))

    zero_shot = ZeroShot(space, _scores(engine, protein, space, score))
    return next_round(space, measured, zero_shot, options, embed, controls)


def check_score(score: str) -> None:
    """Raise ValueError if a score of several mutations is not the sum of theirs."""
    if not score_of(score).is_distribution:
        allowed = ", ".join(name for name, one in SCORES.items() if one.is_distribution)
        raise ValueError(
            f"inference.score: got {score}, which needs a pass of the model for each variant; allowed are "
            f"{allowed}"
        )


def _only_protein(config: RunFile) -> Protein:
    """Return the protein of the input.

    Raises:
        ValueError: if there are several, or none that can be used.
    """
    found: list[Protein] = []
    for record in records_of(config):
        if isinstance(record, Reject):
            raise ValueError(f"inference.input: {record.text}")
        if record.chains:
            raise ValueError(
                f"inference.input: {shown(record.id)} has several chains; give one, as a record of its own"
            )
        found.append(record)
        if len(found) > 1:
            raise ValueError(
                f"inference.input: got several proteins, such as {shown(found[0].id)} and "
                f"{shown(found[1].id)}; give the wild type alone"
            )
    return found[0]


def _control(name: str, protein: Protein, first_position: int, field: str) -> Variant:
    """Return a control.

    Raises:
        ValueError: if it does not fit the protein, or inserts or deletes residues.
    """
    try:
        variant = parse_variant(name, protein, first_position, field)
    except MutationError as error:
        raise ValueError(f"propose.controls: {error}") from None
    if not variant.keeps_length:
        raise ValueError(
            f"propose.controls: {shown(name)} inserts or deletes residues; give substitutions or WT"
        )
    return variant


def _scores(engine: Engine, protein: Protein, space: Space, score: str) -> Floats:
    """Return the score of each single mutation of a space, (P, 20); 0 for the wild type's residue."""
    tokens = range(FIRST_RESIDUE, FIRST_RESIDUE + NUM_STANDARD_RESIDUES)
    variants = [
        Variant("", (Edit(place, place + 1, bytes([token])),), protein.tokens)
        for place in space.places
        for token in tokens
    ]
    found = score_variants(engine, protein.tokens, variants, score)
    return np.array(found).reshape(len(space.places), NUM_STANDARD_RESIDUES)


def rows_of(found: Sequence[Proposal], number: int) -> list[tuple[object, ...]]:
    """Return the rows of the table.

    Args:
        found: proposed variants.
        number: number of their round.
    """
    return [
        (
            one.variant,
            one.sequence,
            one.predicted,
            one.uncertainty,
            one.zero_shot,
            number,
            one.reason,
        )
        for one in found
    ]


def _table(found: Sequence[Proposal], number: int) -> str:
    """Return the table as CSV."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows_of(found, number):
        writer.writerow([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row])
    return stream.getvalue()
