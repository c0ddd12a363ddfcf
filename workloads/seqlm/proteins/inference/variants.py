"""Score the effects of variants, without training (``seqlm variants``).

The scores are masked marginals (Meier et al. 2021). Each mutated position is masked alone in the wild type,
and a variant's score is the sum over its positions of log p(mutant) - log p(wild type). Below 0, the model
finds the mutant less likely. As in that paper, several mutations are taken as independent of each other.

``inference.mutations`` is a CSV of mutations. Without it, every single mutant of each protein is scored, and
each protein gets a heat map. The result has the columns id, mutation and score. Mutations that do not fit
their protein are listed in the rejects, each with its reason, and the others are scored.
"""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from seqlm.proteins.inference.model_head import check_head
from seqlm.runs.inference_commands import MASKED_LM
from seqlm.runs.run_file import RunFile
from seqlm.training.processes import Processes

from .job import Command
from .masked_marginals import masked_marginals, places_of
from .mutations import Variant, all_single_mutants, read_mutations, with_rejected_mutations
from .records import Protein, Reject, records_of
from .repeated_ids import Rows
from .single_mutants import draw_heat_maps, write_positions

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
    check_head(
        "variants", command.model_name, command.engine.model.config.architectures or [MASKED_LM]
    )
    table = None if inference.mutations is None else read_mutations(Path(inference.mutations))
    command.settings["mutations_fingerprint"] = None if table is None else table.fingerprint

    def records() -> Iterable[Protein | Reject]:
        found = records_of(config)
        return found if table is None else with_rejected_mutations(found, table)

    def wanted_of(protein: Protein) -> list[Variant]:
        if table is None:
            return all_single_mutants(protein)
        return [found for found in table.parsed(protein) if isinstance(found, Variant)]

    def residues_of(protein: Protein) -> int:
        window = min(len(protein.tokens), config.model.max_residues)
        return window * len(places_of(wanted_of(protein)))

    def tabulate(proteins: list[Protein]) -> Rows:
        ids: list[str] = []
        mutations: list[str] = []
        scores: list[float] = []
        per_protein: list[int] = []
        for protein in proteins:
            wanted = wanted_of(protein)
            per_protein.append(len(wanted))
            if wanted:
                ids += [protein.id] * len(wanted)
                mutations += [variant.name for variant in wanted]
                scores += masked_marginals(command.engine, protein.tokens, wanted)
        return Rows(pa.table([ids, mutations, scores], schema=_SCHEMA), per_protein)

    part_residues = max(1, inference.part_residues // MASKED_RESIDUES_PER_PART)
    wanted_field = None if table is None else "inference.mutations"
    command.run(tabulate, part_residues, records, residues_of, wanted_field)
    if here.is_first and table is None:
        for picture in draw_heat_maps(command.output.path, command.model_name):
            print(f"wrote {picture}: heat map")
        for written in write_positions(command.output.path, command.model_name):
            print(f"wrote {written.path}: {written.content}")
