"""Score the effects of variants, without training (``seqlm variants``).

``inference.score`` selects one of the scores in ``variant_scores.py``. Below 0, the model finds the variant
less likely than the wild type.

``inference.mutations`` is a table of variants. Without it, every single mutant of each protein is scored, and
each protein gets a heat map. The result has the columns id, mutation and score. Mutations that do not fit
their protein are listed in the rejects, each with its reason, and the others are scored.

With ``inference.structure``, a copy of the structure has the mean effect of each position as B-factors.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from seqlm.proteins.alphabet import FIRST_RESIDUE, NUM_STANDARD_RESIDUES, STANDARD_RESIDUES
from seqlm.proteins.inference.model_head import check_head
from seqlm.proteins.mutations.edits import Variant
from seqlm.proteins.mutations.in_chains import single_mutants_of
from seqlm.proteins.reading.counts import Counts
from seqlm.proteins.reading.policies import Kind, Reader
from seqlm.proteins.reading.rejects import Reject
from seqlm.proteins.structures.matching import read_named, with_a_match
from seqlm.runs.inference_commands import MASKED_LM
from seqlm.runs.run_file import RunFile
from seqlm.training.processes import Processes

from .engine_probabilities import score_variants
from .job import Command, Work
from .mutation_table import read_mutations, with_rejected_mutations
from .records import Protein, nothing_used
from .repeated_ids import Rows
from .single_mutants import draw_heat_maps, write_positions
from .structure_effects import write_effects
from .variant_scores import MASKED_MARGINALS, score_of

_SCHEMA = pa.schema([("id", pa.string()), ("mutation", pa.string()), ("score", pa.float32())])
READS_PER_PROTEIN = 50
"""Factor by which parts are smaller than those of embeddings: a protein of L residues with each position
masked in turn is L proteins to the model."""


def variants(config: RunFile, here: Processes) -> None:
    """Write the scores of the requested variants.

    Raises:
        ValueError: if the model, the input, the output or the table of mutations cannot be used.
    """
    inference = config.inference
    command = Command(config, here, "variants")
    check_head(
        "variants", command.model_name, command.engine.model.config.architectures or [MASKED_LM]
    )
    first_position = inference.first_position
    score = score_of(inference.score)
    structure = None
    if inference.structure is not None:
        if inference.mutations is not None:
            raise ValueError(
                f"inference.structure: got {inference.structure} with inference.mutations; the mean effect "
                "of a position is that of all single mutants, so leave one of them out"
            )
        structure = read_named(inference.structure)
    table = None
    if inference.mutations is not None:
        table = read_mutations(
            Path(inference.mutations),
            inference.mutation_column,
            inference.id_column,
            first_position=first_position,
            score=inference.score,
        )
    command.settings["mutations_fingerprint"] = None if table is None else table.fingerprint
    # Otherwise the result is that of versions without these settings.
    if inference.score != MASKED_MARGINALS:
        command.settings["score"] = inference.score
    if first_position != 1:
        command.settings["first_position"] = first_position

    scored = Counts("residues", is_listed=False)

    def records() -> Iterable[Protein | Reject]:
        found: Iterable[Protein | Reject] = command.records()
        if structure is not None:
            found = with_a_match(found, structure)
        if table is not None:
            return with_rejected_mutations(found, table)
        scored.clear()
        return _counting(found, scored)

    def counts() -> list[Counts]:
        return [scored if table is None else table.counts()]

    def draw() -> None:
        out = command.output.path
        for picture in draw_heat_maps(out, command.model_name, first_position):
            print(f"wrote {picture}: heat map")
        if score.is_distribution:
            has_chains = command.joins_chains
            for written in write_positions(
                out, command.model_name, first_position, has_chains=has_chains
            ):
                print(f"wrote {written.path}: {written.content}")
        if structure is not None:
            print(
                write_effects(out, structure, first_position).line("mean effect of each position")
            )

    def wanted_of(protein: Protein) -> Iterator[Variant]:
        if table is None:
            yield from single_mutants_of(protein, first_position)
            return
        for found in table.parsed(protein):
            if isinstance(found, Variant):
                yield found

    def residues_of(protein: Protein) -> int:
        window = min(len(protein.tokens), config.model.max_residues)
        return window * score.num_reads(protein.tokens, wanted_of(protein))

    def tabulate(proteins: list[Protein]) -> Rows:
        ids: list[str] = []
        mutations: list[str] = []
        scores: list[float] = []
        per_protein: list[int] = []

        def named(protein: Protein) -> Iterator[Variant]:
            for variant in wanted_of(protein):
                mutations.append(variant.name)
                yield variant

        for protein in proteins:
            found = score_variants(command.engine, protein.tokens, named(protein), inference.score)
            scores += found
            ids += [protein.id] * len(found)
            per_protein.append(len(found))
        return Rows(pa.table([ids, mutations, scores], schema=_SCHEMA), per_protein)

    work = Work(
        tabulate=tabulate,
        part_residues=max(1, inference.part_residues // READS_PER_PROTEIN),
        records=records,
        residues_of=residues_of,
        counts=counts,
        draw=draw if table is None else None,
    )
    command.run(work)


def _counting(records: Iterable[Protein | Reject], counts: Counts) -> Iterator[Protein | Reject]:
    """Yield records, and count the residues with and without mutants.

    Raises:
        ValueError: if no residue has mutants.
    """
    first: Reject | None = None
    for record in records:
        if isinstance(record, Protein):
            residues = record.residues
            num_scored = int((residues < FIRST_RESIDUE + NUM_STANDARD_RESIDUES).sum())
            counts.used += num_scored
            counts.left_out[Kind.UNUSUAL] += len(residues) - num_scored
            if first is None and num_scored < len(residues):
                reason = f"record {record.id} has residues other than {STANDARD_RESIDUES}"
                first = Reject(Kind.UNUSUAL, record.file, reason, record.id)
        yield record
    if not counts.used:
        raise nothing_used("inference.input", counts, first, Reader.INFERENCE)
