"""Shared part of the commands of inference, which turn the proteins of the input into rows of one table.

The first process reads the whole input, and writes it in parts that are parsed already. Every process
computes every n-th part, for n processes. The first process joins the results when all are written. The
others wait for it, because Kubernetes operators consider a job complete when one of its pods has succeeded.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from seqlm.proteins.data.plausibility import ALLOW, Implausible
from seqlm.proteins.model.pretrained import load_model
from seqlm.proteins.reading.chain_modes import chain_mode
from seqlm.proteins.reading.counts import Counts
from seqlm.proteins.reading.policies import Kind
from seqlm.proteins.reading.rejects import OF_PROTEINS, Reject
from seqlm.runs.run_file import RunFile
from seqlm.training.data.pauses import spread
from seqlm.training.hardware import environment
from seqlm.training.heartbeat import beat
from seqlm.training.kernels import KERNELS_FIELD, listed
from seqlm.training.precision import select_precision
from seqlm.training.processes import Processes, exclusive
from seqlm.training.saved_model import fingerprint
from seqlm.training.tracking.progress import WorkProgress

from .engine import Answer, Array, Engine, compile_from
from .input_parts import InputParts
from .output import Output
from .records import (
    READERS,
    InputKey,
    Part,
    Planned,
    Protein,
    cut,
    key_of,
    mode_name,
    records_of,
    with_policies,
)
from .repeated_ids import OCCURRENCE, Occurrences, Rows

WAIT_SECONDS = 0.5
"""Mean time between the first looks at the files of the other processes."""
MOST_WAIT_SECONDS = 10.0
"""Mean time between two looks after a long wait, because thousands of processes may look at the same file."""
WAIT_SHARE = 0.02
"""Pause before the next look, as a share of the time waited. It delays a command by one percent."""
SHORTEST_SECONDS = 1e-9
"""Lower limit of a duration before it divides."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Computation of a command, as functions."""

    tabulate: Callable[[list[Protein]], Rows]
    """Function from proteins to their rows."""
    part_residues: int
    """Number of residues after which a part ends."""
    records: Callable[[], Iterable[Protein | Reject]] | None = None
    """Function that opens the input, which the first process reads once; by default ``Command.records``."""
    residues_of: Callable[[Protein], int] | None = None
    """Function from a protein to the number of residues that the model reads, for the progress; by default
    those of the protein."""
    counts: Callable[[], Sequence[Counts]] = tuple
    """Function that returns the numbers of other items than proteins, once the input has been read."""
    draw: Callable[[], None] | None = None
    """Function that writes more files when the table is complete, in the first process."""


class PartPlace(NamedTuple):
    """Place of a part in the result."""

    part: int
    """Number of the part, from 0."""
    first_protein: int
    """Number of its first protein in the input, from 0, without those that are rejected."""


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
        self.reader = READERS[name]
        config = with_policies(config, self.reader)
        self.config = config
        self.here = here
        self.chains = mode_name(config)
        """Name of the reading of several chains; None if the run file names none."""
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
            kernels=config.inference.kernels,
            here=here,
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
        self.part_place = PartPlace(0, 0)
        """Place of the part that is being computed."""
        self._input = InputParts(self.output.folder)
        self._input_key = InputKey()
        if self.chains is not None:  # otherwise the result is that of versions without chains
            self.settings["chains"] = self.chains
        if self.engine.kernels:  # otherwise the result is that of versions without kernels
            self.settings[KERNELS_FIELD] = listed(self.engine.kernels)

    @property
    def joins_chains(self) -> bool:
        """Whether records with several chains are read as one protein."""
        return self.chains is not None and chain_mode(self.chains).joins

    def answers(self, proteins: list[Protein], answer: Answer) -> list[Array]:
        """Return the engine's answers; ``inference.long_proteins`` applies."""
        kept = [self._kept(protein) for protein in proteins]
        return self.engine.run(kept, answer, [protein.chains for protein in proteins])

    def _kept(self, protein: Protein) -> npt.NDArray[np.uint8]:
        """Return the tokens of a protein, without those that ``inference.long_proteins`` crops."""
        if self.config.inference.long_proteins == "crop":
            return protein.tokens[: self.config.model.max_residues]
        return protein.tokens

    def run(self, work: Work) -> None:
        """Compute the missing parts and join them; every process calls this.

        Args:
            work: computation.

        Raises:
            ValueError: if the input cannot be read, changes meanwhile, or nothing of it can be used, if
                another command writes the output, or the output holds another result.
        """
        output = self.output
        try:
            output.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            folder = f"{output.path.parent} cannot be written: {error.strerror}"
            raise ValueError(f"{folder}; name another inference.output") from None
        when_held = (
            f"{output.path} is being written by another command; wait for it, stop it (its workers too), or "
            "name another inference.output"
        )
        with exclusive(output.path, self.here, when_held):
            try:
                plan = self._plan_of_first(work)
                self._write(work, plan)
            finally:
                if self.here.is_first:
                    self._input.clear()
        if self.here.is_first:
            if work.draw is not None:
                work.draw()
            for line in plan.lines:
                print(line)

    def records(self) -> Iterator[Protein | Reject]:
        """Read the records of ``inference.input``."""
        self._input_key = InputKey()
        return self._input_key.adding(records_of(self.config, reader=self.reader))

    def _parts(self, work: Work) -> Iterator[Part]:
        """Read the whole input, cut into parts."""
        beat("reading the input", slow=True)  # it may have to be downloaded first
        records = work.records() if work.records else self.records()
        for part in cut(records, work.part_residues, json.dumps(self.settings)):
            beat("reading the input")
            yield part

    def _plan_of_first(self, work: Work) -> "_Plan":
        """Let the first process read the input, and return its plan; every process calls this.

        The others wait for a file, because a collective has a time limit.

        Raises:
            OSError: on every process, if the parts cannot be written.
            ValueError: on every process, if the input cannot be read, or nothing of it can be used.
        """
        here = self.here
        plan = _Plan()
        failure: OSError | ValueError | None = None
        if here.is_first:
            self._input.clear()  # of a killed command
        dist.barrier(group=here.control)
        if here.is_first:
            try:
                plan = self._plan(work)
            except (OSError, ValueError) as error:
                failure = error
            if here.world_size > 1:
                self._input.mark_complete()
        else:
            _await(self._input.complete.exists)
        dist.barrier(group=here.control)
        here.raise_from_first(failure)
        return here.from_first(plan)

    def _write(self, work: Work, plan: "_Plan") -> None:
        """Write the table, unless it is complete."""
        key = plan.key
        if self.output.is_finished(key):
            self._say(
                f"{self.output.path} already exists, from the same proteins, model and settings"
            )
            return
        self.output.check_free(key)
        missing = {plan.parts[number].file for number in plan.missing}
        # The output must be the same for all processes until here.
        beat("waiting for the other processes", slow=True)
        dist.barrier(group=self.here.control)
        started = time.monotonic()
        num_done = len(plan.parts) - len(missing)
        if num_done:
            self._say(f"continuing: {num_done} of {len(plan.parts)} parts are done")
        self._compute(plan, work)
        if not self.here.is_first:
            _await(lambda: self.output.is_finished(key))
            return
        await_all(self.output.folder / part.file for part in plan.parts)
        self._join(plan, missing, time.monotonic() - started)

    def _has(self, part: Planned) -> bool:
        """Return whether the file of a part exists."""
        return (self.output.folder / part.file).exists()

    def _plan(self, work: Work) -> "_Plan":
        """Read the whole input once, write its missing parts, and print warnings about its records.

        Raises:
            ValueError: if the input cannot be read, or nothing of it can be used.
        """
        plan = _Plan()
        occurrences = Occurrences()
        implausible = Implausible()
        proteins = Counts(OF_PROTEINS)
        residues = Counts("residues", is_listed=False)
        nucleotides: list[Reject] = []
        residues_of = work.residues_of or self._num_kept
        for part in self._parts(work):
            plan.parts.append(part.planned)
            if not self._has(part.planned):
                plan.missing.append(part.number)
                self._input.write(part)
            plan.work.append(sum(map(residues_of, part.proteins)))
            ids = [protein.id for protein in part.proteins]
            occurrences.add_part(ids)
            implausible.look_at(ids, [protein.residues for protein in part.proteins])
            proteins.used += len(part.proteins)
            proteins.leave_out(one for one in part.rejects if one.what == OF_PROTEINS)
            num_kept = sum(map(self._num_kept, part.proteins))
            residues.used += num_kept
            residues.left_out[Kind.LONG] += part.planned.num_residues - num_kept
            nucleotides += [one for one in part.rejects if one.kind is Kind.NUCLEOTIDES]
        for warning in implausible.warnings():
            self._say(warning)
        if nucleotides:
            self._say(
                f"warning: {len(nucleotides):,} records are rejected because they look like DNA or RNA, for "
                f"example {nucleotides[0].name}; allow them with {ALLOW}"
            )
        repeated = occurrences.count()
        plan.repeats_ids = repeated > 0
        for number in plan.missing:
            numbers = occurrences.of_part(number)
            if numbers is not None:
                self._input.write_numbers(plan.parts[number], numbers)
        if repeated:
            self._say(
                f"warning: {repeated:,} records have the id of an earlier one; the column {OCCURRENCE} tells "
                "them apart"
            )
        is_cropped = residues.left_out[Kind.LONG] > 0
        counts = [proteins, *([residues] if is_cropped else []), *work.counts()]
        plan.lines = [one.line(self.output.rejects) for one in counts]
        plan.input_key = self._input_key.value
        return plan

    def _num_kept(self, protein: Protein) -> int:
        """Return the number of residues that ``inference.long_proteins`` does not crop."""
        num_kept = len(self._kept(protein))
        if not protein.chains:
            return num_kept
        return sum(max(0, min(span.stop, num_kept) - span.start) for span in protein.chains)

    def _compute(self, plan: "_Plan", work: Work) -> None:
        """Write this process's share of the missing parts."""
        mine = [
            number for number in plan.missing if number % self.here.world_size == self.here.rank
        ]
        title = str(self.settings["command"])
        total = sum(plan.work[number] for number in mine)
        progress = WorkProgress(title, total, "residues", shows=self.here.is_first)
        self.engine.on_residues = progress.add
        first_proteins = np.cumsum([0, *(part.num_proteins for part in plan.parts)]).tolist()
        for number in mine:
            planned = plan.parts[number]
            part = self._input.read(number, planned)
            self.part_place = PartPlace(number, first_proteins[number])
            begun = time.monotonic()
            rows = work.tabulate(part.proteins)
            table = rows.table
            if plan.repeats_ids:
                table = rows.with_occurrences(self._input.numbers(planned))
            self.output.write_part(planned.file, table, part.rejects)
            self._input.drop(planned)
            rate = planned.num_residues / (time.monotonic() - begun)
            print(
                f"part {number + 1} of {len(plan.parts)}: {planned.num_proteins:,} proteins, "
                f"{planned.num_residues:,} residues, {rate:,.0f} residues/s",
                file=sys.stderr,
            )

    def _join(self, plan: "_Plan", missing: set[str], seconds: float) -> None:
        """Join the parts, and print where the result is.

        Args:
            plan: parts of the result.
            missing: files of the parts that this start has computed.
            seconds: seconds that this start has computed.
        """
        output = self.output
        computed = sum(part.num_residues for part in plan.parts if part.file in missing)
        totals = {
            "proteins": sum(part.num_proteins for part in plan.parts),
            "residues": sum(part.num_residues for part in plan.parts),
            "rejected": sum(part.num_rejects for part in plan.parts),
            "processes": self.here.world_size,
            "computed_residues": computed,
            "seconds": round(seconds, 3),
        }
        output.check_free(plan.key)  # again: hours may have passed
        summary = {
            "key": plan.key,
            "input_key": plan.input_key,
            **self.settings,
            KERNELS_FIELD: listed(self.engine.kernels),
            **totals,
            "environment": environment(self.here.device),
        }
        output.join([part.file for part in plan.parts], summary)
        rate = computed / max(seconds, SHORTEST_SECONDS)
        self._say(
            f"wrote {output.path}: proteins {totals['proteins']:,}, residues {totals['residues']:,}, in "
            f"{seconds:,.1f} s ({self.settings['precision']}, {rate:,.0f} residues/s)"
        )
        self._say(f"wrote {output.summary}: settings and totals")

    def _say(self, text: str) -> None:
        if self.here.is_first:
            print(text)


@dataclass
class _Plan:
    """Parts of the result, in the order of the input."""

    parts: list[Planned] = field(default_factory=list)
    work: list[int] = field(default_factory=list)
    """Number of residues that the model reads for each part."""
    missing: list[int] = field(default_factory=list)
    """Numbers of the parts without a result, from 0."""
    repeats_ids: bool = False
    """Whether two records of the input have one id."""
    input_key: str = ""
    """Hash of the input."""
    lines: list[str] = field(default_factory=list)
    """Lines with the numbers of what is used and left out, which end the command."""

    @property
    def key(self) -> str:
        """Key of the whole result."""
        return key_of(self.parts)


def await_all(files: Iterable[Path]) -> None:
    """Wait until the other processes have written all of these files."""
    for file in files:
        _await(file.exists)


def _await(is_done: Callable[[], bool]) -> None:
    """Wait until the other processes are done; torchrun ends this one if another fails."""
    waited_seconds = 0.0
    while not is_done():
        beat("waiting for the other processes")
        mean = min(MOST_WAIT_SECONDS, max(WAIT_SECONDS, WAIT_SHARE * waited_seconds))
        pause = spread(mean)
        time.sleep(pause)
        waited_seconds += pause
