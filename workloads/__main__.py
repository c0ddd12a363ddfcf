"""The command ``seqlm``, also ``python -m workloads``: a subcommand for each thing to do with a model.

Subcommands take a run file and changes to it. make and the launchers of a cluster start the same subcommands.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from workloads import evaluate, prepare, publish, train
from workloads.bionemo import convert
from workloads.esm2.serving import command as serving
from workloads.families import lazy
from workloads.inference import run_inference
from workloads.run_file import RunFile, run_stage
from workloads.run_kinds import report
from workloads.run_schema import SCHEMA_FILE, json_schema
from workloads.training.command_line import Usage, one_line_errors, stage_parser
from workloads.training.whole_file import write_whole

PROTEINS, TASK = "esm2_8m_sample", "membrane_sample"
"""Bundled run files."""
MODEL = {"--model": "inference.model"}
START = {"--model": "model.init_from"}
OUTPUT = {**MODEL, "--output": "inference.output"}
PREPARATION = ("data", "task", "guard", "chat", "model.init_from")
SCORING = (
    *("name", "runs", "model", "data", "evaluate", "inference.model", "task", "chat"),
    *("train.precision", "train.tokens_per_pack"),
)
INFERENCE = (
    *("name", "runs", "inference", "model.max_residues", "data.downloads", "data.allow_nucleotides"),
    *("train.precision", "train.compile", "task.id_column", "task.sequence_column"),
)
EXPLORE = (
    *("name", "runs", "explore", "inference.model", "inference.output", "inference.id_column"),
    *("inference.sequence_column", "task.table", "task.id_column", "task.sequence_column"),
)
LAYERS = (*INFERENCE, *PREPARATION)
PUBLISH = ("name", "runs", "publish", "inference.model", "inference.overwrite")
SCORECARD = (*INFERENCE, "data", "evaluate", "scorecard", "model.mask_fraction", "train.tokens_per_pack")
"""Fields of the run file that the subcommands read."""
Subcommand = tuple[Callable[[RunFile], None], Usage]


_usage = partial(Usage, run_file=PROTEINS, options=START)


def _inference(name: str, summary: str) -> Subcommand:
    return partial(run_inference, name), _usage(summary, INFERENCE, options=OUTPUT, files="inference.input")


def write_report(arguments: Sequence[str]) -> None:
    """Write the report of a finished or running run again."""
    parser = argparse.ArgumentParser(
        prog="seqlm report",
        description="Write the report of a finished or running run again: ``seqlm report RUN_DIR``.",
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="folder of a run: <runs>/<name>")
    options = parser.parse_args(arguments)
    with one_line_errors():
        print(report(options.run_dir))


SUBCOMMANDS: Mapping[str, Subcommand] = {
    "data": (prepare.main, _usage("prepare the data of a run", PREPARATION, files="data.source")),
    "train": (train.main, _usage("pre-train or fine-tune a model, or continue a run")),
    "finetune": (train.finetune, _usage("train for a task or on questions", run_file=TASK)),
    "evaluate": (evaluate.main, _usage("score a model on prepared data", SCORING, options=MODEL)),
    "embed": _inference("embed", "write embeddings of proteins"),
    "predict": _inference("predict", "label proteins with a fine-tuned model"),
    "variants": _inference("variants", "score the effects of mutations"),
    "contacts": _inference("contacts", "predict contacts within proteins"),
    "scorecard": (
        evaluate.scorecard,
        _usage("score what a model knows, on an HTML page", SCORECARD, options=OUTPUT),
    ),
    "layers": (
        evaluate.layers,
        _usage("compare layers and poolings for a task", LAYERS, run_file=TASK, options=OUTPUT),
    ),
    "explore": (
        lazy("explore.command:explore"),
        _usage(
            "draw a map of embeddings as an HTML page",
            EXPLORE,
            options={**MODEL, "--output": "explore.output"},
            files="explore.embeddings",
        ),
    ),
    "publish": (
        publish.main,
        _usage("write a folder for the Hugging Face Hub, and push it", PUBLISH, options=MODEL),
    ),
    "train-bionemo": (lazy("bionemo.train:start"), _usage("train with NVIDIA BioNeMo, in its image")),
    "convert-bionemo": (convert.main, _usage("convert checkpoints of BioNeMo")),
}
"""Subcommands that read a run file."""
OTHERS: Mapping[str, tuple[str, Callable[[Sequence[str]], None]]] = {
    "serve": ("answer requests over HTTP with a model", serving.main),
    "report": ("write the report of a run again", write_report),
}


def main() -> None:
    name, arguments = next(iter(sys.argv[1:]), ""), sys.argv[2:]
    if name in SUBCOMMANDS:
        run_stage(*SUBCOMMANDS[name], arguments, f"seqlm {name}")
        return
    if name in OTHERS:
        OTHERS[name][1](arguments)
        return
    parser = _parser()
    options = parser.parse_args()
    if options.write_schema:
        schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Run"}
        write_whole(SCHEMA_FILE, json.dumps(schema | json_schema(RunFile), indent=1) + "\n")
        print(os.path.relpath(SCHEMA_FILE))
    elif options.version:
        from workloads.training.hardware import software_stack  # imports torch

        stack = software_stack()
        width = max(map(len, stack))
        for part, found in stack.items():
            print(f"{part:{width}}  {found or 'not found'}")
    else:
        parser.print_help()


def _parser() -> argparse.ArgumentParser:
    """Return the parser of ``--help`` and of the shell's completion."""
    parser = argparse.ArgumentParser(
        prog="seqlm",
        description="Train and use protein and language models. seqlm SUBCOMMAND --help lists its options.",
        epilog='Completion in bash or zsh: eval "$(register-python-argcomplete seqlm)"',
    )
    parser.add_argument("--version", action="store_true", help="print the software stack and stop")
    parser.add_argument("--write-schema", action="store_true", help="write the JSON schema of run files")
    added = parser.add_subparsers(metavar="SUBCOMMAND", title="subcommands")
    for name, (_, usage) in SUBCOMMANDS.items():
        stage_parser(usage, added.add_parser(name, help=usage.summary))
    for name, (summary, _) in OTHERS.items():
        added.add_parser(name, help=summary)
    if find_spec("argcomplete"):
        import argcomplete

        argcomplete.autocomplete(parser)
    return parser


if __name__ == "__main__":
    main()
