"""Checkpoints, written in the background with checksums, and renamed into place when complete.

``<run>/checkpoints/step-00000500/`` holds the files of torch.distributed.checkpoint and ``checkpoint.json``
with the progress, the resolved configuration and a CRC-32 of every file. It is written as
``step-00000500.partial`` and renamed once every process has finished, so a folder with the final name is
complete. State is saved by parameter name, so another world size, or FSDP instead of DDP, can resume from it.
"""

import functools
import itertools
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save
from torch.optim import Optimizer

from .checkpoint_reader import METADATA_FILE, Reader, read_into
from .checksums import (
    CHECKPOINT_FILE,
    DamagedError,
    OtherRunError,
    crc32,
    read_document,
    seal,
    verified,
)
from .command_line import RunError
from .heartbeat import beat
from .memory.kept_states import KeptStates
from .memory.pieces import local_tensors
from .optimizer import create_state
from .parallel import bare
from .processes import Processes
from .whole_file import move_into_place, remove, write_whole

LEFT_TOGETHER = (RunError, SystemExit)
"""Exceptions that every process raises at the same place."""
_PARTIAL = ".partial"
"""Suffix of a folder that is being written."""
_DAMAGED = ".damaged"
"""Suffix of a folder with wrong checksums."""
_REUSES_STAGER = torch.__version__ >= "2.13"
"""Whether a stager serves several saves, from the same memory. torch 2.11 closes it after the first save."""


class CheckpointError(RunError):
    """A checkpoint could not be written."""


class _PendingSave(NamedTuple):
    """Save that is being written in the background."""

    step: int
    extra: Mapping[str, Any]
    """Further entries for ``checkpoint.json``."""
    checksums: Future[dict[str, int]]
    """CRC-32 of each file that this process writes, once it is written."""


@dataclass(frozen=True)
class _Found:
    """Complete states that a start may continue from. They may be damaged."""

    checkpoints: Sequence[Path]
    """Folders of the checkpoints, newest first."""
    memory_step: int | None
    """Step of a state in memory that is newer than all checkpoints; None without one."""


class Checkpointer:
    """Saves and restores a run's model, optimizers and progress.

    Every process calls every method in the same order.

    Args:
        folder: folder of the run's checkpoints.
        here: this process.
        identity: values by the names of their fields that a resumed run must share, such as model and seed.
        keep: number of newest checkpoints to keep.
        trains_all: whether to save all parameters. Otherwise only those that need a gradient are saved, and
            the others are as the run starts with them.
        memory: states in memory; None if the run keeps none.
    """

    def __init__(
        self,
        folder: Path,
        here: Processes,
        identity: Mapping[str, Any],
        keep: int,
        *,
        trains_all: bool = True,
        memory: KeptStates | None = None,
    ) -> None:
        self.memory = memory
        self._folder = folder
        self._here = here
        self._identity = dict(identity)
        self._keep = keep
        self._options = StateDictOptions(
            ignore_frozen_params=not trains_all,
            strict=trains_all,
            cpu_offload=here.runtime.checkpoints_on_host,
        )
        self._trains_all = trains_all
        # Background collectives need a group of their own, or they would meet those of the training step.
        self._group = dist.new_group(backend="gloo")
        cuda = here.device.type == "cuda"
        self._staging = StagingOptions(
            use_pinned_memory=cuda,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=cuda,
        )
        self._stager = DefaultStager(self._staging)
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: _PendingSave | None = None
        self._found: _Found | None = None
        """States that ``has_state`` has found, for the next ``restore``."""
        here.first_does(self._prepare_folder)

    def _prepare_folder(self) -> None:
        """Create the folder, and delete what a killed start left in it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for leftover in self._folder.glob(f"*{_PARTIAL}"):
            remove(leftover)

    def save(
        self, step: int, model: nn.Module, optimizers: list[Optimizer], extra: Mapping[str, Any]
    ) -> None:
        """Start writing the state after ``step``. Waits for a save that is still under way.

        Args:
            step: number of steps that the run has made.
            model: model of the run.
            optimizers: optimizers of the run.
            extra: further entries for ``checkpoint.json``.

        Raises:
            CheckpointError: if the previous save could not be written.
        """
        self.finish()
        beat("saving a checkpoint", slow=True)
        partial = self._path(step, _PARTIAL)
        if not _REUSES_STAGER:
            self._stager = DefaultStager(self._staging)
        state: dict[str, Any] = {}
        # With checkpoints_on_host every process has the whole state. Two copies for each of a node's 32 or 64
        # NeuronCores, one of them to write from, would exceed the memory of the host.
        if self._here.is_first or not self._here.runtime.checkpoints_on_host:
            state = self._parts(model, optimizers)
        future = async_save(
            state, checkpoint_id=partial, process_group=self._group, async_stager=self._stager
        )
        assert not isinstance(future, AsyncSaveResponse)  # only asynchronous staging returns one
        checksums = self._background.submit(self._checksums, partial, future)
        self._pending = _PendingSave(step, extra, checksums)

    def save_in_memory(
        self, step: int, model: nn.Module, optimizers: list[Optimizer], extra: Mapping[str, Any]
    ) -> None:
        """Keep the state after ``step`` in the memory of the nodes, where it does not count as saved.

        The arguments are those of ``save``.
        """
        assert self.memory is not None
        beat("copying the state to memory", slow=True)
        self.memory.save(step, local_tensors(self._parts(model, optimizers)), extra)

    @property
    def is_written(self) -> bool:
        """Whether a save is under way and this process has written its files.

        If this holds on every process, ``finish`` returns without waiting.
        """
        return self._pending is not None and self._pending.checksums.done()

    def finish(self) -> int | None:
        """Wait for the save under way and rename it; return its step, or None if there was none.

        Raises:
            CheckpointError: if it could not be written, a full disk for instance; on every process.
        """
        if self._pending is None:
            return None
        beat("saving a checkpoint", slow=True)
        pending = self._pending
        self._pending = None
        path = self._path(pending.step)
        partial = self._path(pending.step, _PARTIAL)
        problem = ""
        written: dict[str, int] = {}
        try:
            written = pending.checksums.result()
        except CheckpointException as error:
            problem = "; ".join(sorted({str(failure[0]) for failure in error.failures.values()}))
        except (OSError, RuntimeError) as error:
            problem = str(error)
        checksums = self._here.gather(written)
        if self._here.is_first and not problem:
            absent = [name for name in checksums if not (partial / name).exists()]
            if absent:
                names = ", ".join(absent)
                problem = f"{names} of other hosts are not here; 'runs' must be shared by all hosts"
        problems = sorted(set(self._here.gather({self._here.rank: problem}).values()) - {""})
        if not problems:
            document = {
                "step": pending.step,
                "world_size": self._here.world_size,
                "identity": self._identity,
                "holds": "model" if self._trains_all else "what was trained",
                "checksums": checksums,
                **pending.extra,
            }
            problems = self._complete_save(document, partial, path)
        if problems:
            if self._here.is_first:
                shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(
                f"checkpoint {path} could not be written: {'; '.join(problems)}. Earlier checkpoints are "
                "intact; free disk space or change 'runs', then start the same command again"
            )
        self._here.first_does(self._delete_old)
        return pending.step

    def _complete_save(self, document: Mapping[str, Any], partial: Path, path: Path) -> list[str]:
        """Write ``checkpoint.json`` and rename the folder; return the problem on every process, if any."""

        def rename() -> None:
            write_whole(partial / CHECKPOINT_FILE, seal(document))
            move_into_place(partial, path)

        try:
            self._here.first_does(rename)
        except OSError as error:
            return [str(error)]
        return []

    def _delete_old(self) -> None:
        """Delete all checkpoints but the newest ones, when the newest is complete.

        A folder that is being deleted does not have the name of a complete one.
        """
        for old in self._complete()[self._keep :]:
            leftover = old.with_name(old.name + _PARTIAL)
            old.rename(leftover)
            remove(leftover)

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Finish the save under way if every process leaves together, and free the staging memory.

        A run that has ended or was stopped is saved, so its states in memory are of no use any more.

        After any other error, this process may be the only one that leaves, and would wait for ever.
        """
        if kind is None or issubclass(kind, LEFT_TOGETHER):
            self.finish()
        if self.memory is not None and (kind is None or issubclass(kind, SystemExit)):
            self.memory.forget()
        self._background.shutdown(wait=False, cancel_futures=True)
        self._stager.close()

    def has_state(self) -> bool:
        """Return whether the next ``restore`` has a state to read, which may be damaged."""
        self._found = self._find()
        return bool(self._found.checkpoints) or self._found.memory_step is not None

    def _find(self) -> _Found:
        """Return the states on which all processes agree."""
        checkpoints = self._agreed_candidates()
        step = None if self.memory is None else self.memory.newest()
        if step is not None and any(self._path(step) <= path for path in checkpoints):
            step = None
        return _Found(checkpoints, step)

    def restore(self, model: nn.Module, optimizers: list[Optimizer]) -> dict[str, Any] | None:
        """Load the newest undamaged state; return its ``checkpoint.json``, None if the run has none.

        A state in memory is used if it is newer than all checkpoints. If it is damaged and there is no
        checkpoint, adapters are as before, and the weights of a run that trains all of them are arbitrary. A
        damaged checkpoint is renamed to ``*.damaged`` with a warning, and the one before it is tried.

        Raises:
            ValueError: if the checkpoint is of another model, data set or seed, naming the fields, or if all
                checkpoints are damaged.
        """
        beat("restoring a checkpoint", slow=True)
        damaged: list[str] = []
        found = self._found or self._find()
        self._found = None
        document = self._restore_from_memory(found.memory_step, model, optimizers)
        if document is not None:
            return document
        for path in found.checkpoints:
            try:
                return self._load(path, model, optimizers)
            except DamagedError as error:
                damaged.append(error.what)
            if self._here.is_first:
                print(
                    f"warning: {damaged[-1]}; falling back to the checkpoint before it", flush=True
                )
            aside = path.with_name(path.name + _DAMAGED)
            self._here.first_does(functools.partial(_rename_to_free_name, path, aside))
        if damaged:
            raise ValueError(
                "every checkpoint of this run is damaged:\n  "
                + "\n  ".join(damaged)
                + f"\nmend one (they are kept as {self._folder}/*{_DAMAGED}*), "
                "or delete the run's folder to start from step 0"
            )
        return None

    def _restore_from_memory(
        self, step: int | None, model: nn.Module, optimizers: list[Optimizer]
    ) -> dict[str, Any] | None:
        """Load the state in memory of a step; return its document.

        Without one, and if it is damaged, all states in memory are deleted.
        """
        if self.memory is None:
            return None
        if step is not None:
            new = [optimizer for optimizer in optimizers if not optimizer.state]
            model_state, optimizer_state = self._state_to_read(model, optimizers)
            state = {"model": model_state, "optimizer": {"state": optimizer_state["state"]}}
            adapters = {} if self._trains_all else local_tensors(model_state)
            before = {name: value.clone() for name, value in adapters.items()}
            try:
                document = self.memory.load(step, local_tensors(state))
            except DamagedError as error:
                # This process may have read its part, and another one not.
                for name, value in before.items():
                    adapters[name].copy_(value)
                for optimizer in new:
                    optimizer.state.clear()
                if self._here.is_first:
                    print(
                        f"warning: {error.what}; falling back to the newest checkpoint", flush=True
                    )
            else:
                self._set(model, optimizers, state, optimizer_state)
                return document
        self.memory.forget()
        return None

    def _load(self, path: Path, model: nn.Module, optimizers: list[Optimizer]) -> dict[str, Any]:
        model_state, optimizer_state = self._state_to_read(model, optimizers)
        state: dict[str, Any] = {
            "model": model_state,
            "optimizer": {"state": optimizer_state["state"]},
        }
        # A damaged file may already have changed the model. The checkpoint that is tried next replaces all.
        with verified(path, self._here):
            advice = "restore these settings, or choose another 'name' to start a new run"
            document = check_identity(path, self._identity, advice)
            read_into(state, Reader(path), self._group)
        self._set(model, optimizers, state, optimizer_state)
        return document

    def _set(
        self,
        model: nn.Module,
        optimizers: list[Optimizer],
        state: Mapping[str, Any],
        optimizer_state: dict[str, Any],
    ) -> None:
        """Set the states of the model and of the optimizers, but not the optimizers' settings.

        Args:
            model: model of the run.
            optimizers: optimizers of the run.
            state: state that was read.
            optimizer_state: state of the optimizers before, with their settings.
        """
        settings = [[dict(group) for group in optimizer.param_groups] for optimizer in optimizers]
        set_state_dict(
            model,
            optimizers,
            model_state_dict=state["model"],
            optim_state_dict=optimizer_state | state["optimizer"],
            options=self._options,
        )
        # The settings of an optimizer depend on the device, which may be of another kind than the saved one.
        for optimizer, groups in zip(optimizers, settings, strict=True):
            for group, own in zip(optimizer.param_groups, groups, strict=True):
                group.update({name: value for name, value in own.items() if name != "params"})

    def _parts(self, model: nn.Module, optimizers: list[Optimizer]) -> dict[str, Any]:
        """Return what is saved of the states of the model and of the optimizers."""
        model_state, optimizer_state = self._state(model, optimizers)
        # The rest is settings, which the run file has and torch would store as pickles.
        return {"model": model_state, "optimizer": {"state": optimizer_state["state"]}}

    def _state_to_read(
        self, model: nn.Module, optimizers: list[Optimizer]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the states of the model and of the optimizers, whose values a saved state replaces."""
        for optimizer in optimizers:
            create_state(optimizer)
        return self._state(model, optimizers)

    def _state(
        self, model: nn.Module, optimizers: list[Optimizer]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the states of the model and of the optimizers, by parameter name."""
        model_state, optimizer_state = get_state_dict(model, optimizers, options=self._options)
        if not self._trains_all:
            # get_state_dict leaves frozen parameters out, but not buffers, such as those of 4-bit weights.
            trained = {name for name, p in bare(model).named_parameters() if p.requires_grad}
            model_state = {name: value for name, value in model_state.items() if name in trained}
        return model_state, optimizer_state

    def _checksums(self, partial: Path, saved: Future[Any]) -> dict[str, int]:
        """Wait until the files are written to the disk, then read back those that this process wrote.

        Raises:
            OSError: if one cannot be read back, which ends the save.
        """
        saved.result()
        written = list(partial.glob(f"__{self._here.rank}_*"))
        if self._here.is_first:
            written.append(partial / METADATA_FILE)
        return {file.name: crc32(file) for file in written}

    def _agreed_candidates(self) -> list[Path]:
        """Return the complete checkpoints that rank 0 finds; other hosts may see a rename later."""
        names = [[path.name for path in self._complete()] if self._here.is_first else None]
        dist.broadcast_object_list(names, src=0, group=self._here.control)
        return [self._folder / name for name in names[0] or []]

    def _complete(self) -> list[Path]:
        """Return the folders of finished checkpoints, newest first."""
        return sorted(self._folder.glob("step-" + "[0-9]" * 8), reverse=True)

    def _path(self, step: int, suffix: str = "") -> Path:
        return self._folder / f"step-{step:08d}{suffix}"


def check_identity(checkpoint: Path, identity: Mapping[str, Any], advice: str) -> dict[str, Any]:
    """Return a checkpoint's ``checkpoint.json``.

    Args:
        checkpoint: folder of a complete checkpoint.
        identity: values that the checkpoint must share.
        advice: end of the error message.

    Raises:
        OtherRunError: (a ValueError) if the checkpoint is of a run with another identity, naming the
            differences.
    """
    document = read_document(checkpoint)
    saved = document["identity"]
    differing = [
        f"{name}: checkpoint {saved.get(name)!r}, now {identity.get(name)!r}"
        for name in sorted(saved.keys() | identity.keys())
        if saved.get(name) != identity.get(name)
    ]
    if differing:
        raise OtherRunError(
            f"{checkpoint} belongs to another run:\n  " + "\n  ".join(differing) + f"\n{advice}"
        )
    return document


def _rename_to_free_name(path: Path, name: Path) -> None:
    """Rename a folder to ``name``, with a number at its end if something has that name."""
    free = name
    for number in itertools.count(2):
        if not free.exists():
            break
        free = name.with_name(f"{name.name}-{number}")
    path.rename(free)
