"""Table of the commands of inference, which use models of every protein family.

``stages.py`` makes a subcommand and a stage of each, ``commands/inference.py`` runs them, and
``proteins/inference/output_file.py`` names their outputs. Nodes import this: standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass

MASKED_LM = "ForMaskedLM"
SEQUENCE_CLASSIFIER = "ForSequenceClassification"
TOKEN_CLASSIFIER = "ForTokenClassification"
HEADS = (MASKED_LM, SEQUENCE_CLASSIFIER, TOKEN_CLASSIFIER)
"""Heads of a protein model, as the ends of the architectures' names in config.json."""
TASK_HEADS = (SEQUENCE_CLASSIFIER, TOKEN_CLASSIFIER)
"""Heads of fine-tuned models."""

PARQUET = ".parquet"
CSV = ".csv"
HTML = ".html"
POSITIONS_END = ".positions.csv"
"""End of the name of the table of variants by position."""
PRECISION_END = ".precision.csv"
"""End of the name of the table that compares contacts with structures."""
STRUCTURE_ENDS = (".structure.pdb", ".structure.cif")
"""Ends of the names of copies of structures with the effects of variants, by their format."""
READING = (
    "name",
    "runs",
    "inference",
    "model.max_residues",
    "data.downloads",
    "data.allow_nucleotides",
    "train.precision",
    "train.compile",
    "task.id_column",
    "task.sequence_column",
    "task.sequence_columns",
    "task.chains",
)
"""Fields of the run file that every command reads."""
PREPARING = ("data", "task", "guard", "chat", "model.init_from")
"""Fields of the run file that shape prepared data."""
INPUT_FIELD = "inference.input"
"""Field with the proteins that a command reads."""
MEASURED_FIELD = "propose.measured"
"""Field with the tables of measured variants."""
PROTEIN_RUN = "esm2_8m_sample"
TASK_RUN = "membrane_sample"
"""Bundled run files that subcommands read by default."""
FEW_BYTES = 30_000
"""Size of an input for which starting other processes takes longer than the computation."""


@dataclass(frozen=True, kw_only=True)
class InferenceCommand:
    """Command of inference, as data."""

    run: str
    """Function of the run file and the process, as ``module:function`` below ``seqlm``."""
    summary: str
    """Phrase for ``--help``."""
    output_name: str
    """Name of the output, without its ending, if ``inference.output`` is null."""
    formats: tuple[str, ...]
    """Endings of the output's name, the default one first."""
    by_parts: bool = True
    """Whether the command reads ``inference.input`` and writes a table part by part, on all processes. Others
    write one file."""
    draws: bool = False
    """Whether it draws pictures beside the table."""
    companions: tuple[str, ...] = ()
    """Ends of the names of further files beside the table, which replace its ending."""
    inputs: tuple[str, ...] = (INPUT_FIELD,)
    """Fields whose files decide on the amount of work."""
    small_bytes: int = FEW_BYTES
    """Size of the inputs up to which this process computes alone."""
    one_process: bool = False
    """Whether this process computes inputs of any size alone."""
    heads: tuple[str, ...] = HEADS
    """Heads that the command accepts."""
    reads_mutations: bool = False
    """Whether it reads ``inference.mutations``. With such a list, the limit is ``FEW_BYTES``, not
    ``small_bytes``."""
    reads_structure: bool = False
    """Whether it reads ``inference.structure``."""
    reads_prepared_data: bool = False
    """Whether it reads the prepared data of the run, which are prepared first if they are missing."""
    takes_models: bool = False
    """Whether it reads ``inference.models``."""
    needs_task: bool = False
    """Whether the run file must have a section ``task``."""
    uses_starting_model: bool = False
    """Whether the model is ``model.init_from`` instead of the run's own, if ``inference.model`` is null."""
    fields: tuple[str, ...] = READING
    """Sections and fields of the run file that the command reads."""
    run_file: str = PROTEIN_RUN
    """Bundled run file that the command reads by default."""


INFERENCE_COMMANDS: Mapping[str, InferenceCommand] = {
    "embed": InferenceCommand(
        run="proteins.inference.embed:embed",
        summary="write embeddings of proteins",
        output_name="embeddings",
        formats=(PARQUET,),
    ),
    "predict": InferenceCommand(
        run="proteins.inference.predict:predict",
        summary="label proteins with a fine-tuned model",
        output_name="predictions",
        formats=(CSV, PARQUET),
        heads=TASK_HEADS,
    ),
    "variants": InferenceCommand(
        run="proteins.inference.variants:variants",
        summary="score the effects of mutations",
        output_name="variants",
        formats=(CSV, PARQUET),
        draws=True,
        companions=(POSITIONS_END, *STRUCTURE_ENDS),
        small_bytes=1_000,  # all mutants of L residues take the arithmetic of about L**2 residues
        heads=(MASKED_LM,),
        reads_mutations=True,
        reads_structure=True,
    ),
    "propose": InferenceCommand(
        run="proteins.propose.command:propose",
        summary="propose the variants to measure next",
        output_name="proposals",
        formats=(CSV,),
        by_parts=False,
        inputs=(INPUT_FIELD, MEASURED_FIELD),
        one_process=True,
        heads=(MASKED_LM,),
        fields=(*READING, "propose"),
    ),
    "contacts": InferenceCommand(
        run="proteins.contacts.command:contacts",
        summary="predict contacts within proteins",
        output_name="contacts",
        formats=(CSV, PARQUET),
        companions=(PRECISION_END,),
        reads_structure=True,
    ),
    "scorecard": InferenceCommand(
        run="proteins.scorecard.command:scorecard",
        summary="score what a model knows, on an HTML page",
        output_name="scorecard",
        formats=(HTML,),
        by_parts=False,
        inputs=("scorecard.proteingym",),
        small_bytes=0,  # the bundled parts are small; any assay is not
        heads=(MASKED_LM,),
        reads_prepared_data=True,
        takes_models=True,
        fields=(
            *READING,
            "data",
            "evaluate",
            "scorecard",
            "model.mask_fraction",
            "train.tokens_per_pack",
        ),
    ),
    "layers": InferenceCommand(
        run="proteins.scorecard.layers:layers",
        summary="compare layers and poolings for a task",
        output_name="layers",
        formats=(CSV,),
        by_parts=False,
        inputs=(),
        reads_prepared_data=True,
        needs_task=True,
        uses_starting_model=True,
        fields=(*READING, *PREPARING),
        run_file=TASK_RUN,
    ),
}


def inference_command(name: str) -> InferenceCommand:
    """Return a command of inference by its name.

    Raises:
        ValueError: if there is no such command.
    """
    if name not in INFERENCE_COMMANDS:
        raise ValueError(f"command: got {name!r}; allowed are {', '.join(INFERENCE_COMMANDS)}")
    return INFERENCE_COMMANDS[name]
