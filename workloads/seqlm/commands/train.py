"""Train a run (``seqlm train``).

A run file with ``task:`` fine-tunes, one with ``chat:`` fine-tunes a causal language model, and any other
pre-trains. The same command continues from the newest checkpoint. SIGTERM and Ctrl-C save a checkpoint first.

Without torchrun, the command prepares missing data and starts one process per device of this machine. It
reports mistakes in the run file before it imports torch and transformers, which takes seconds.
"""

import os
import sys
import time
from functools import partial

from seqlm.commands import kinds
from seqlm.launch.local import on_every_device
from seqlm.runs.model_names import check_model_name, short_training
from seqlm.runs.run_file import RunFile
from seqlm.training.command_line import importing
from seqlm.training.heartbeat import STARTED
from seqlm.training.memory.template import fork_if_template
from seqlm.training.tracking.run_log import RESULTS_FILE


def main(config: RunFile) -> None:
    """Train as one of torchrun's processes, or start these processes and exit with their status.

    Raises:
        ValueError: for mistakes that are found before the processes start.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if "RANK" in os.environ:
        train(config)
        return
    os.environ.setdefault(STARTED, str(time.time()))
    if config.model.init_from and not config.chat:
        check_model_name("model.init_from", config.model.init_from)
    kind = kinds.kind_of(config)
    # This order finds a missing source, or a mistake in a table, before torch is imported.
    is_table_or_missing = config.task or not all(map(os.path.exists, kind.paths_read(config)))
    if is_table_or_missing:
        kinds.prepare(config)
    if config.model.init_from:
        kind.check_start(config)
    if not is_table_or_missing:
        kinds.prepare(config)
    if warning := short_training(config.model.init_from):
        print(warning, file=sys.stderr)
    if (config.run_dir / RESULTS_FILE).exists():
        print(
            f"{config.run_dir} holds a finished run; it continues only if train.max_steps is larger. "
            "Choose another name= to start a new run",
            file=sys.stderr,
        )
    status = on_every_device(f"training {config.name}")
    if status == 0:
        for line in kind.counted(config, None):
            print(line)
    raise SystemExit(status)


def finetune(config: RunFile) -> None:
    """Train a run that has a task or questions.

    Raises:
        ValueError: if it has neither, or for mistakes that are found before the processes start.
    """
    if not (config.task or config.chat):
        raise ValueError(
            "task, chat: the run file has neither; add a section task: to fine-tune a protein model or chat: "
            "to fine-tune a language model, or pre-train with seqlm train"
        )
    main(config)


def train(config: RunFile) -> None:
    """Train in this process, which torchrun started or which runs alone."""
    fork_if_template(partial(_import_for, config))
    with importing():
        from seqlm.training.train import train_run

    train_run(
        config,
        lambda: kinds.kind_of(config).objective(config),
        lambda: kinds.report(config.run_dir),
    )


def _import_for(config: RunFile) -> None:
    """Import all that a run of this kind needs, also what its objective imports at its first use."""
    with importing():
        import seqlm.training.train  # noqa: F401

        kinds.kind_of(config).objective(config).on_meta()
