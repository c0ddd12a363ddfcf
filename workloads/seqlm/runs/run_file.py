"""Run file: the trainer's sections, and those of the model families and of the other stages.

All mistakes are reported at once, each with its field, its value and the allowed values.
"""

import argparse
import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from seqlm.bionemo.config import BionemoConfig
from seqlm.language.config import ChatConfig, chat_violations
from seqlm.proteins.config import (
    ExploreConfig,
    GuardConfig,
    InferenceConfig,
    ProposeConfig,
    PublishConfig,
    ScorecardConfig,
    TaskConfig,
    named_fields,
    protein_violations,
)
from seqlm.proteins.families.table import MODEL_FAMILIES, family_of
from seqlm.runs.schema import dry_run_text, fields_text
from seqlm.training import config_rules
from seqlm.training.command_line import NO_USAGE, Usage, one_line_errors, overrides_of, stage_parser
from seqlm.training.config import DataConfig, RunConfig, StartConfig, read_run
from seqlm.training.config_rules import least_violations, training_violations

if TYPE_CHECKING:
    ModelFamilyName = str
    ModelSize = str
else:  # as types, so that wrong values are reported together with the mistakes in other fields
    ModelFamilyName = Literal[tuple(MODEL_FAMILIES)]
    ModelSize = Literal[
        tuple(dict.fromkeys(size for each in MODEL_FAMILIES.values() for size in each.sizes))
    ]
_SHIPPED = Path(__file__).parents[1] / "configs"
_LEAST = {
    0: "evaluate.packs evaluate.pseudo_perplexity_proteins inference.tokens_per_pack chat.questions",
    2: "explore.max_proteins",
    1: "inference.part_residues "
    "bionemo.micro_batch_size bionemo.tensor_parallel_size "
    "bionemo.check_every_steps bionemo.dataset_workers chat.max_new_tokens chat.questions_at_once",
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig(StartConfig):
    family: ModelFamilyName = "esm2"
    """Model family; that of ``init_from``, if it is known there. With ``chat:``, ``init_from`` selects it."""
    size: ModelSize = "8M"
    """Published shape of the family; ignored if ``init_from`` is set."""
    mask_fraction: float = 0.15
    """Share of residues to predict. Of these, 80 % become <mask>, 10 % a random residue, and 10 % stay."""


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Score of a model on prepared data (``make evaluate``)."""

    split: Literal["validation", "test", "train"] = "validation"
    """Split of the prepared data to score."""
    packs: int = 128
    """Packs of a split that final scores of a training and ``evaluate`` read; 0 reads all. Without a bound,
    the scores of large data take longer than a short training. Runs with a task read all, because their
    predictions are listed."""
    pseudo_perplexity_proteins: int = 0
    """Number of proteins for the pseudo-perplexity, which masks each residue in turn; 0 skips it."""


@dataclass(frozen=True, kw_only=True)
class RunFile(RunConfig):
    """Run file with all its sections and their defaults."""

    model: ModelConfig = field(default_factory=ModelConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    scorecard: ScorecardConfig = field(default_factory=ScorecardConfig)
    explore: ExploreConfig = field(default_factory=ExploreConfig)
    propose: ProposeConfig = field(default_factory=ProposeConfig)
    publish: PublishConfig = field(default_factory=PublishConfig)
    task: TaskConfig | None = None
    bionemo: BionemoConfig | None = None
    """Settings of ``make train-bionemo``; null uses its defaults."""
    guard: GuardConfig | None = None
    """Scores general proteins during continued pre-training; null scores none."""
    chat: ChatConfig | None = None
    """Fine-tunes a causal language model on questions and answers."""

    def __post_init__(self) -> None:
        """Fill in the family of a saved model, and the longest protein of the family."""
        family = self.model.family
        start = self.model.init_from
        if start and self.chat is None:
            family = family_of(start) or family
        queried = next(iter(self.inference.models), self.inference.model)
        longest_of = (queried and family_of(queried)) or family
        longest = self.model.max_residues or MODEL_FAMILIES[longest_of].max_residues
        model = dataclasses.replace(self.model, family=family, max_residues=longest)
        object.__setattr__(self, "model", model)  # the class is frozen

    @property
    def scored_models(self) -> tuple[str, ...]:
        """Models that a command of inference reads: ``inference.models`` or one model."""
        inference = self.inference
        return inference.models or (inference.model or str(self.run_dir / "model"),)


def run_file_path(path: str | Path) -> Path:
    """Return the path of a run file, or of the bundled one with this name; else ``path`` itself."""
    if Path(path).exists():
        return Path(path)
    bundled = {file.stem: file for file in sorted(_SHIPPED.rglob("*.yaml"))}
    return bundled.get(str(path), Path(path))


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunFile:
    """Read a run file, apply ``section.field=value`` overrides and check every rule.

    Raises:
        ValueError: listing all mistakes in the file and the overrides.
    """
    config = read_run(RunFile, path, overrides, _violations, _SHIPPED)
    if config.data.path:
        return config
    data = dataclasses.replace(config.data, path=_data_path(config))
    return dataclasses.replace(config, data=data)


def _data_path(config: RunFile) -> str:
    """Name the folder of the prepared data after the first source and a hash of their settings."""
    data = config.data
    table = config.chat or config.task
    sources = table.table if table else data.members or data.source
    if sources == ("sample",) and table is None and _settings(data) == _settings(DataConfig()):
        return "data/sample"
    shape = dataclasses.asdict(config.chat) if config.chat else {}
    if config.task and not config.chat:
        shape = named_fields(config.task)
    for name in WITHOUT_SHAPE:
        shape.pop(name, None)
    tokenizer = config.model.init_from if config.chat else None
    settings = json.dumps([sources, _settings(data), shape, tokenizer])
    digest = hashlib.blake2b(settings.encode(), digest_size=4).hexdigest()
    first = Path(sources[0]).name.split(".")[0] if sources else ""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", first)[:MAX_NAME]
    return f"data/{name or 'data'}-{digest}"


WITHOUT_SHAPE = ("class_weights", "baselines", "direction")
"""Fields of ``task`` that do not shape the prepared data."""
LATER_SETTINGS = ("max_rejected_share", "id_column", "sequence_column")
"""Fields of ``data`` that shape prepared data, and that the first versions did not have."""
MAX_NAME = 40
"""Characters of the source's name in the name of the data folder."""


def _settings(data: DataConfig) -> list[object]:
    """List the settings, besides the sources, that shape prepared data."""
    settings: list[object] = [
        data.membership,
        data.seed,
        data.validation_fraction,
        data.test_fraction,
    ]
    # Later fields count only if they are set, so that earlier folders keep their names.
    later = {name: getattr(data, name) for name in LATER_SETTINGS}
    changed = {name: value for name, value in later.items() if value != getattr(DataConfig(), name)}
    return [*settings, changed] if changed else settings


TRAINING = (
    "name",
    "runs",
    "model",
    "data",
    "optim",
    "train",
    "parallel",
    "tracking",
    "lora",
    "task",
    "guard",
    "chat",
)
"""Fields that training reads."""


def run_stage(
    main: Callable[[RunFile], None],
    usage: Usage = NO_USAGE,
    arguments: Sequence[str] | None = None,
    *,
    name: str | None = None,
    paths_read: Callable[[RunFile], Sequence[str]] = lambda config: (),
) -> None:
    """Run a stage with the run file that the command line names, in ``one_line_errors``.

    Args:
        main: function of the stage.
        usage: fields that the stage reads, and options of its command line.
        arguments: arguments of the command line; by default those of this process.
        name: name of the command.
        paths_read: function that returns the files that a stage without ``inference`` reads, for a dry run.
    """
    is_help = bool({"-h", "--help"} & {*sys.argv})
    reads = usage.reads or TRAINING
    parser = argparse.ArgumentParser(
        prog=name,
        description=usage.summary and f"{usage.summary[0].upper()}{usage.summary[1:]}.",
        epilog=f"fields and their defaults:\n{fields_text(RunFile, reads)}" if is_help else "",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parsed = stage_parser(usage, parser).parse_intermixed_args(arguments)
    with one_line_errors():
        config = load_config(parsed.config, overrides_of(usage, parsed))
        if not parsed.dry_run:
            main(config)
            return
        inputs = config.inference.input if "inference" in reads else paths_read(config)
        print(dry_run_text(config, reads, inputs))


def xla_violations(config: RunFile) -> list[str]:
    """List the settings of a run that XLA devices, such as NeuronCores, do not support."""
    sections = (("task", config.task), ("chat", config.chat))
    return [
        *config_rules.xla_violations(config),
        *(
            config_rules.fine_tuning_on_xla(name)
            for name, section in sections
            if section is not None
        ),
    ]


def _violations(config: RunFile) -> Iterator[str]:
    """Yield a message for each broken rule."""
    yield from training_violations(config)
    yield from least_violations(config, _LEAST)
    model = config.model
    sizes = MODEL_FAMILIES[model.family].sizes
    if model.size not in sizes and model.init_from is None and config.chat is None:
        yield f"model.size: got {model.size} with family {model.family}; allowed are {', '.join(sizes)}"
    yield from protein_violations(config)
    if config.lora is not None and config.task is None and config.chat is None:
        yield (
            "lora: adapters are for fine-tuning; add a section task: or chat:, or leave lora out to pre-train"
        )
    if config.chat is not None:
        yield from chat_violations(config.chat, config)
