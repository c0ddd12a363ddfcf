"""Score the effects of variants, without training (``seqlm variants``).

The scores are masked marginals (Meier et al. 2021). Each mutated position is masked alone in the wild type,
and a variant's score is the sum over its positions of log p(mutant) - log p(wild type). Below 0, the model
finds the mutant less likely. As in that paper, several mutations are taken as independent of each other.

``inference.mutations`` is a CSV of mutations. Without it, every single mutant of each protein is scored, and
each protein gets a heat map. The result has the columns id, mutation and score. Mutations that do not fit
their protein are listed in the rejects, each with its reason, and the others are scored.
"""

from pathlib import Path

import pyarrow as pa

from seqlm.proteins.inference.model_head import check_head
from seqlm.runs.inference_commands import MASKED_LM
from seqlm.runs.run_file import RunFile
from seqlm.training.processes import Processes

from .job import Command
from .masked_marginals import masked_marginals, places_of
from .mutations import Variant, all_single_mutants, asked_for, read_mutations
from .records import Protein, records_of
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
    check_head("variants", command.model_name, command.engine.model.config.architectures or [MASKED_LM])
    asked = None if inference.mutations is None else read_mutations(Path(inference.mutations))
    command.settings["mutations_fingerprint"] = None if asked is None else asked.fingerprint

    def wanted_of(protein: Protein) -> list[Variant]:
        if asked is None:
            return all_single_mutants(protein)
        return [found for found in asked.parsed(protein) if isinstance(found, Variant)]

    def residues_of(protein: Protein) -> int:
        return len(places_of(wanted_of(protein))) * min(len(protein.tokens), config.model.max_residues)

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
