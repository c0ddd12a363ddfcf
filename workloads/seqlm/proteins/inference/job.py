"""Shared part of the commands of inference, which turn the proteins of the input into rows of one table.

Every process reads the whole input, which is quick, and computes every n-th part, for n processes. The first
process joins the parts when all are written. The others wait for it, because Kubernetes operators consider a
job complete when one of its pods has succeeded.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
import torch.distributed as dist

from seqlm.proteins.data.plausibility import ALLOW, NUCLEOTIDES, Implausible
from seqlm.proteins.model.pretrained import load_model
from seqlm.runs.run_file import RunFile
from seqlm.training.hardware import environment
from seqlm.training.heartbeat import beat
from seqlm.training.precision import select_precision
from seqlm.training.processes import Processes, exclusive
from seqlm.training.saved_model import fingerprint
from seqlm.training.tracking.progress import WorkProgress

from .engine import Answer, Array, Engine, compile_from
from .output import Output
from .records import Part, Protein, Reject, cut, input_key, key_of, planned, records_of

WAIT_SECONDS = 0.5


class Command:
    """Command of inference, with its output and its loaded model.

    Args:
        config: run file.
        here: this process.
        name: name of the command.

    Raises:
        ValueError: if the output has a wrong name, or the model is missing or cannot be read.
    """

    def __init__(self, config: RunFile, here: Processes, name: str) -> None:
        self.config, self.here = config, here
        self.output = Output(config, name)
        self.model_name = config.inference.model or str(config.run_dir / "model")
        beat("loading", slow=True)
        model = load_model(self.model_name, here)
        identity = fingerprint(model.state_dict(), str(getattr(model, "config", None)))
        self.engine = Engine(
            model,
            device=here.device,
            dtype=select_precision(config.train, here.device, here).dtype,
            tokens_per_pack=config.inference.tokens_per_pack,
            max_residues=config.model.max_residues,
            compile_from=compile_from(config.train, here.device),
        )
        self.settings: dict[str, object] = {
            "command": name,
            "model": self.model_name,
            "model_fingerprint": identity,
            "precision": "bf16" if self.engine.dtype == torch.bfloat16 else "fp32",
            "max_residues": config.model.max_residues,
            "long_proteins": config.inference.long_proteins,
        }
        """Values, besides the proteins, that a result depends on."""

    def answers(self, proteins: list[Protein], answer: Answer) -> list[Array]:
        """Return the engine's answers; ``inference.long_proteins`` applies."""
        return self.engine.run([self._kept(protein) for protein in proteins], answer)

    def _kept(self, protein: Protein) -> npt.NDArray[np.uint8]:
        is_cropped = self.config.inference.long_proteins == "crop"
        return protein.tokens[: self.config.model.max_residues if is_cropped else None]

    def run(
        self,
        tabulate: Callable[[list[Protein]], pa.Table],
        part_residues: int,
        records: Callable[[], Iterable[Protein | Reject]] | None = None,
        residues_of: Callable[[Protein], int] | None = None,
    ) -> None:
        """Compute the missing parts and join them; every process calls this.

        Args:
            tabulate: returns the rows for proteins.
            part_residues: number of residues after which a part ends.
            records: returns the input, which is read twice; by default that of ``inference.input``.
            residues_of: returns the residues that the model reads for a protein, for the progress; by default
                those of the protein.

        Raises:
            ValueError: if the input cannot be read, changes meanwhile or has no protein, if another command
                writes the output, or the output holds another result.
        """
        output, identity = self.output, json.dumps(self.settings)
        when_held = (
            f"{output.path} is being written by another command; wait for it, stop it (its workers too), or "
            "name another inference.output"
        )
        try:
            output.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            folder = f"{output.path.parent} cannot be written: {error.strerror}"
            raise ValueError(f"{folder}; name another inference.output") from None

        def read() -> Iterator[Part]:
            beat("reading the input", slow=True)  # it may have to be downloaded first
            for part in cut((records or partial(records_of, self.config))(), part_residues, identity):
                beat("reading the input")
                yield part

        with exclusive(output.path, self.here, when_held):
            self._run(read, tabulate, residues_of or (lambda protein: len(self._kept(protein))))

    def _run(
        self,
        read: Callable[[], Iterator[Part]],
        tabulate: Callable[[list[Protein]], pa.Table],
        residues_of: Callable[[Protein], int],
    ) -> None:
        here, output, settings = self.here, self.output, self.settings
        plan, work, implausible, refused = [], list[int](), Implausible(), _Refused()
        for part in read():
            plan.append(planned(part))
            work.append(sum(map(residues_of, part.proteins)))
            implausible.look_at([protein.id for protein in part.proteins], [p.tokens for p in part.proteins])
            refused.add(part.rejects)
        if not implausible.looked_at:
            raise ValueError(f"inference.input: {refused.reason()}")
        for warning in [*implausible.warnings(), *refused.warnings()]:
            _say(here, warning)
        key = key_of(plan)
        if output.is_finished(key):
            _say(here, f"{output.path} already exists, from the same proteins, model and settings")
            return
        output.check_free(key)
        missing = {part.file for part in plan if not (output.folder / part.file).exists()}
        # All processes must list the missing parts before the first one may join and delete them.
        beat("waiting for the other processes", slow=True)
        dist.barrier(group=here.control)
        started = time.monotonic()
        if len(missing) < len(plan):
            _say(here, f"continuing: {len(plan) - len(missing)} of {len(plan)} parts are done")
        mine = [
            part.file in missing and number % here.world_size == here.rank for number, part in enumerate(plan)
        ]
        total = sum(residues for residues, is_mine in zip(work, mine, strict=True) if is_mine)
        self.engine.on_residues = WorkProgress(
            str(settings["command"]), total, "residues", shows=here.is_first
        ).add
        for part, expected in zip(read(), plan, strict=True):
            if planned(part) != expected:
                raise ValueError("inference.input: a file changed while it was read; run the command again")
            if not mine[part.number]:
                continue
            begun = time.monotonic()
            output.write_part(expected.file, tabulate(part.proteins), part.rejects)
            rate = part.num_residues / (time.monotonic() - begun)
            print(
                f"part {part.number + 1} of {len(plan)}: {len(part.proteins):,} proteins, "
                f"{part.num_residues:,} residues, {rate:,.0f} residues/s",
                file=sys.stderr,
            )
        if not here.is_first:
            _await(lambda: output.is_finished(key))
            return
        _await(lambda: all((output.folder / part.file).exists() for part in plan))
        seconds = time.monotonic() - started
        computed = sum(part.num_residues for part in plan if part.file in missing)
        totals = {
            "proteins": sum(part.num_proteins for part in plan),
            "residues": sum(part.num_residues for part in plan),
            "rejected": sum(part.num_rejects for part in plan),
            "processes": here.world_size,
            "computed_residues": computed,
            "seconds": round(seconds, 3),
        }
        output.check_free(key)  # again: hours may have passed
        about = {
            "key": key,
            "input_key": input_key(self.config),
            **settings,
            **totals,
            "environment": environment(here.device),
        }
        output.join([part.file for part in plan], about)
        _say(
            here,
            f"wrote {output.path}: proteins {totals['proteins']:,}, residues {totals['residues']:,}, in "
            f"{seconds:,.1f} s ({settings['precision']}, {computed / max(seconds, 1e-9):,.0f} residues/s)\n"
            f"wrote {output.summary}: settings and totals",
        )
        if totals["rejected"]:
            _say(
                here, f"wrote {output.rejects}: {totals['rejected']:,} rejected records, each with its reason"
            )


@dataclass
class _Refused:
    """Rejected records of an input, and the first one of each kind."""

    count: int = 0
    first: Reject | None = None
    nucleotides: int = 0
    example: str = ""

    def add(self, rejects: list[Reject]) -> None:
        found = [reject.nucleotides for reject in rejects if reject.nucleotides]
        self.first = self.first or next(iter(rejects), None)
        self.example = self.example or next(iter(found), "")
        self.count, self.nucleotides = self.count + len(rejects), self.nucleotides + len(found)

    def reason(self) -> str:
        """Explain why no protein is left."""
        if self.first is None:
            return "got no record; expected at least one protein"
        if self.nucleotides < self.count:
            first = f"{self.first.where}: {self.first.reason}"
            return f"no protein is left; all {self.count:,} records are rejected, the first one at {first}"
        return (
            f"all {self.count:,} records look like DNA or RNA (letters {NUCLEOTIDES} only), for example "
            f"{self.example}; give their translation into proteins, or allow them with {ALLOW}"
        )

    def warnings(self) -> list[str]:
        return [
            f"warning: {self.nucleotides:,} records are rejected because they look like DNA or RNA, for "
            f"example {self.example}; allow them with {ALLOW}"
        ] * bool(self.nucleotides)


def await_all(files: Iterable[Path]) -> None:
    """Wait until the other processes have written all of these files."""
    for file in files:
        _await(file.exists)


def _await(is_done: Callable[[], bool]) -> None:
    """Wait until the other processes are done; torchrun ends this one if another fails."""
    while not is_done():
        beat("waiting for the other processes")
        time.sleep(WAIT_SECONDS)


def _say(here: Processes, text: str) -> None:
    if here.is_first:
        print(text)
