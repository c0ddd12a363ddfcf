"""Embeddings per second beside transformers' feature-extraction pipeline, on the machine at hand.

``python -m benchmarks.inference --fasta PROTEINS.fasta.gz [--model FOLDER] [--json OUT]``

Arms, with the same weights on the same proteins, all of them short enough for both (1,022 residues):

* the pipeline with ``return_tensors=True``, in the type that it loads the checkpoint in (fp32), at batch size
  8 and at the other sizes asked for; proteins come in a drawn order, padded to the longest of a batch;
* ``lists``: the same at its best batch size as it is called without options, with nested lists for a result;
* ``bf16``: the same at its best batch size, loaded in bf16;
* ours: ``Engine`` as ``make embed`` runs it, means over residues; fp32, and bf16 where that is native.

The arms take turns: a round gives each the same fresh proteins, and ratios are taken within a round. On a CPU
each has one thread, and a second is one of the process's CPU time; on CUDA it is wall time. What has come out
is compared, too: the largest relative difference of a protein's mean embedding from the fp32 pipeline's.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from transformers import pipeline

from workloads.esm2.alphabet import decode
from workloads.esm2.config import ModelConfig, ModelSize
from workloads.esm2.data.sources import SAMPLE
from workloads.esm2.hardware import environment
from workloads.esm2.inference.engine import EMBEDDING, Engine
from workloads.esm2.inference.model import load_model
from workloads.esm2.inference.records import Protein, read_proteins
from workloads.esm2.precision import has_bf16_instructions
from workloads.esm2.pretrained import save_model, starting_config, starting_weights

MAX_RESIDUES = 1022
SEED = 0
Tokens = npt.NDArray[np.uint8]
Embed = Callable[[Sequence[Tokens]], list[npt.NDArray[np.float32]]]


@dataclass
class Arm:
    embed: Embed
    rates: list[float] = field(default_factory=list)
    """Residues per second, by round."""
    difference: float = 0.0


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    with TemporaryDirectory(prefix="bench-inference-") as name:
        folder = _model_folder(options.model, Path(name))
        result = measure(folder, _proteins(options), options, device)
    result["command"] = shlex.join(["python", "-m", "benchmarks.inference", *(arguments or sys.argv[1:])])
    result |= {"model": options.model, "environment": environment(device)}
    print(table(result))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default="8M", help="a published size (random weights), a folder or a hub id"
    )
    parser.add_argument("--fasta", default=str(SAMPLE), help="proteins; default: the embedded sample")
    parser.add_argument("--proteins", type=int, default=32, help="of a round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--json", type=Path, help="write everything here")
    return parser.parse_args(arguments)


def measure(
    folder: Path, rounds: list[list[Tokens]], options: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    """Rates of all arms; the first of the rounds only warms up and finds the pipeline's best batch size."""
    warm_up, *rounds = rounds
    plain = pipeline("feature-extraction", model=str(folder), device=device)
    sizes = sorted({8, *options.batch_sizes})
    arms = {f"pipeline, batch {size}": Arm(_pipeline_arm(plain, size)) for size in sizes}
    best = max(arms, key=lambda name: _rate(arms[name], warm_up, device))
    _progress(f"best of the pipeline: {best}")
    size = sizes[list(arms).index(best)]
    half = pipeline("feature-extraction", model=str(folder), device=device, dtype=torch.bfloat16)
    arms[f"pipeline, batch {size}, lists"] = Arm(_pipeline_arm(plain, size, as_lists=True))
    arms[f"pipeline, batch {size}, bf16"] = Arm(_pipeline_arm(half, size))
    native = torch.bfloat16 if device.type == "cuda" or has_bf16_instructions() else torch.float32
    for dtype in dict.fromkeys((torch.float32, native)):
        if device.type == "cuda" and dtype == torch.float32:
            continue  # flash attention, which the packs need there, has no fp32
        engine = Engine(load_model(str(folder)), device=device, dtype=dtype, max_residues=MAX_RESIDUES)
        arms[f"ours, {'bf16' if dtype == torch.bfloat16 else 'fp32'}"] = Arm(_our_arm(engine))
    for arm in list(arms.values())[len(sizes) :]:
        _rate(arm, warm_up, device)
    for number, proteins in enumerate(rounds):
        names = list(arms) if number % 2 == 0 else list(reversed(arms))
        for name in names:
            arms[name].rates.append(_rate(arms[name], proteins, device))
        _progress(f"round {number + 1}: {', '.join(f'{n} {arms[n].rates[-1]:,.0f}' for n in arms)}")
    reference = arms[best].embed(rounds[0])
    for arm in arms.values():
        arm.difference = _largest_difference(arm.embed(rounds[0]), reference)
    ours = list(arms)[-1]
    return {
        "seconds_are": "wall" if device.type == "cuda" else "CPU seconds of one thread",
        "proteins_per_round": len(rounds[0]),
        "residues": sum(len(tokens) for proteins in rounds for tokens in proteins),
        "rounds": len(rounds),
        "best": best,
        "arms": {
            name: {"residues_per_second": _extent(arm.rates), "largest_relative_difference": arm.difference}
            for name, arm in arms.items()
        },
        "ratios": {
            f"{name} / {other}": _extent(
                [a / b for a, b in zip(arms[name].rates, arms[other].rates, strict=True)]
            )
            for name in arms
            for other in arms
            if name.startswith("ours") and not other.startswith("ours")
        },
        "ours": ours,
    }


def _model_folder(model: str, folder: Path) -> Path:
    sizes = {size: ModelConfig(size=size) for size in get_args(ModelSize)}
    config = sizes.get(model, ModelConfig(init_from=model))
    save_model(folder / "model", starting_config(config), starting_weights(config, SEED))
    return folder / "model"


def _proteins(options: argparse.Namespace) -> list[list[Tokens]]:
    """Rounds of distinct proteins in a drawn order, and one to warm up with."""
    records = read_proteins([options.fasta], Path("downloads"), id_column="id", sequence_column="sequence")
    found = [record.tokens for record in records if isinstance(record, Protein)]
    found = [tokens for tokens in found if len(tokens) <= MAX_RESIDUES]
    wanted = (options.rounds + 1) * options.proteins
    if len(found) < wanted:
        raise SystemExit(
            f"error: {options.fasta} has {len(found)} proteins of at most {MAX_RESIDUES} residues; "
            f"{wanted} are needed: fewer --rounds or --proteins"
        )
    order = np.random.default_rng(SEED).permutation(len(found))[:wanted].tolist()
    return [
        [found[index] for index in order[first : first + options.proteins]]
        for first in range(0, wanted, options.proteins)
    ]


def _pipeline_arm(pipe: Any, batch_size: int, *, as_lists: bool = False) -> Embed:
    def embed(proteins: Sequence[Tokens]) -> list[npt.NDArray[np.float32]]:
        texts = (decode(tokens) for tokens in proteins)  # a generator makes the pipeline fill batches
        options = {} if as_lists else {"return_tensors": True}
        return [
            _mean(hidden, len(tokens))
            for hidden, tokens in zip(pipe(texts, batch_size=batch_size, **options), proteins, strict=True)
        ]

    return embed


def _mean(hidden: Any, length: int) -> npt.NDArray[np.float32]:
    """Over the residues of (1, T, C), which begins with CLS and ends with EOS and padding."""
    if isinstance(hidden, list):
        return np.asarray(hidden[0][1 : length + 1], dtype=np.float32).mean(axis=0)
    rows: npt.NDArray[np.float32] = hidden[0, 1 : length + 1].float().mean(dim=0).numpy()
    return rows


def _our_arm(engine: Engine) -> Embed:
    return lambda proteins: engine.run(proteins, EMBEDDING)


def _rate(arm: Arm, proteins: Sequence[Tokens], device: torch.device) -> float:
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    started = clock()
    arm.embed(proteins)  # its results lie on the host: the device is idle
    return sum(map(len, proteins)) / (clock() - started)


def _largest_difference(
    found: list[npt.NDArray[np.float32]], reference: list[npt.NDArray[np.float32]]
) -> float:
    return max(
        float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(found, reference, strict=True)
    )


def _extent(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def table(result: dict[str, Any]) -> str:
    machine = result["environment"]
    lines = [
        f"{machine['device']}, torch {machine['torch']}, transformers {machine['transformers']}; "
        f"ESM-2 {result['model']}",
        f"residues per second ({result['seconds_are']}), median of {result['rounds']} rounds of "
        f"{result['proteins_per_round']} proteins; {result['residues']:,} residues",
        "",
        f"{'':26}{'residues/s':>11}{'min - max':>17}{'difference':>12}  {result['ours']} over it",
    ]
    for name, arm in result["arms"].items():
        rate = arm["residues_per_second"]
        ratio = result["ratios"].get(f"{result['ours']} / {name}")
        shown = f"{ratio['median']:.2f} ({ratio['min']:.2f} - {ratio['max']:.2f})" if ratio else ""
        lines.append(
            f"{name:26}{rate['median']:>11,.0f}{rate['min']:>9,.0f} -{rate['max']:>6,.0f}"
            f"{arm['largest_relative_difference']:>12.1e}  {shown}"
        )
    return "\n".join(lines)


def _progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
