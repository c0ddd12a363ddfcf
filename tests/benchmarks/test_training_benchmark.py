"""The training benchmark runs: one short window of every arm on a tiny model. Timings are not judged."""

import json
import math
from pathlib import Path

import pytest
import torch
from datasets import load_from_disk
from transformers import AutoTokenizer, DataCollatorForLanguageModeling, EsmForMaskedLM
from transformers.trainer_pt_utils import LengthGroupedSampler

from benchmarks import training
from benchmarks.arm_process import Window
from benchmarks.our_arm import count
from benchmarks.quality import Point, points_of, seconds_to
from benchmarks.trainer_arms import _CountingCollator, _SpreadBatches, store_padded_rows, store_rows
from workloads.esm2.data.prepare import prepare
from workloads.esm2.loader import step_packs
from workloads.esm2.model import published_config
from workloads.esm2.packing import PackShape, PackStream, Position
from workloads.esm2.pretrained import save_model
from workloads.esm2.proteins import ProteinSplit

LETTERS = "LAGVSERTIDPKQNFYMHWC"
NUM_PROTEINS = 120


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    fasta = folder / "proteins.fasta"
    # Lengths from 30 to 1100, so that both ways of cutting (510, 1022) have something to cut.
    lengths = [30 + (number * 277) % 1071 for number in range(NUM_PROTEINS)]
    fasta.write_text(
        "".join(
            f">protein{number}\n{''.join(LETTERS[(number * i + i * i) % 20] for i in range(length))}\n"
            for number, length in enumerate(lengths)
        )
    )
    prepare([fasta], folder / "prepared", seed=0, validation_fraction=0.1, test_fraction=0.0, progress=False)
    return folder / "prepared"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = published_config("8M")
    config.num_hidden_layers, config.hidden_size, config.intermediate_size = 1, 32, 64
    config.num_attention_heads = 2
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model") / "tiny"
    save_model(folder, config, EsmForMaskedLM(config).state_dict())
    return folder


def run(data: Path, model: Path, out: Path, *arguments: str) -> dict:
    training.main(["--quick", "--model", str(model), "--data", str(data), "--json", str(out), *arguments])
    return json.loads(out.read_text())


def test_speed_of_every_arm(
    data: Path, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = run(data, model, tmp_path / "new" / "speed.json", "--arms", "a", "a-prime", "b")
    arms = result["speed"]["arms"]
    assert list(arms) == ["A", "A'", "B"]
    assert list(result["speed"]["ratios"]) == ["B / A", "B / A'"]
    table = capfd.readouterr().out
    for name in ("A ", "A' ", "B ", "B / A'", "plain bf16 matmul", result["environment"]["device"]):
        assert name in table
    for name, arm in arms.items():
        (window,) = result["windows"][name]
        assert 0 < window["residues"] < window["slots"]
        assert arm["fill"] == window["residues"] / window["slots"]
        assert arm["loss"] == pytest.approx(math.log(33), abs=0.5)
    rows = result["windows"]["A"][0]
    assert rows["slots"] == 512 * rows["proteins"] == 512 * 4 * rows["steps"]
    assert result["windows"]["B"][0]["slots"] % result["speed"]["tokens_per_pack"] == 0
    assert arms["A"]["fill"] < arms["B"]["fill"]


def test_wrong_data_is_one_line(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="empty"):
        run(tmp_path / "empty", model, tmp_path / "out.json")


def test_counts_of_a_batch(data: Path, model: Path, tmp_path: Path) -> None:
    split = ProteinSplit(data, "train")
    places, lengths = split.draw(0, split.num_units, 0, 0)
    store_padded_rows(split, model, tmp_path / "padded", 10**6)
    store_rows(split, model, tmp_path / "rows", 10**6, 1022)
    collator = _CountingCollator(DataCollatorForLanguageModeling(AutoTokenizer.from_pretrained(model)))
    for folder, longest, slots in (("padded", 510, 512), ("rows", 1022, 1024)):
        rows = load_from_disk(str(tmp_path / folder))
        assert len(rows) == split.num_units
        ids = rows[0]["input_ids"]
        kept = min(lengths[0], longest)
        assert ids[1 : 1 + kept] == split.residues(places[0])[:kept].tolist()
        batch = collator([rows[index] for index in range(len(rows))])
        kept = lengths.clip(max=longest)
        assert batch["counts"].tolist() == [
            len(rows), kept.sum(), ((kept + 2) ** 2).sum(), slots * len(rows)
        ]  # fmt: skip


def test_counts_of_a_pack_agree_with_the_plan(data: Path) -> None:
    split = ProteinSplit(data, "train")
    steps = step_packs(PackStream(split, PackShape.of(split, 2048, 1022), 0), Position(), 2, 0, 1)
    for _ in range(5):
        step = next(steps)
        assert count(step).tolist() == [
            step.num_proteins, step.num_residues, step.num_attended_pairs, 4096
        ]  # fmt: skip


def test_spread_batches_are_the_samplers_own() -> None:
    torch.manual_seed(0)
    lengths = torch.randint(30, 1024, (803,)).tolist()
    plain = LengthGroupedSampler(8, lengths=lengths)
    torch.manual_seed(1)
    own = list(plain)
    torch.manual_seed(1)
    spread = list(_SpreadBatches(plain, 8))
    batches = [tuple(own[i : i + 8]) for i in range(0, 803, 8)]
    found = [tuple(spread[i : i + 8]) for i in range(0, 803, 8)]
    assert sorted(found) == sorted(batches)
    assert (found[0], found[-1]) == (batches[0], batches[-1])
    # Any eight in a row are as long on average as all are.
    longest = [max(lengths[index] for index in batch) for batch in found[1:-1]]
    overall = sum(longest) / len(longest)
    for start in range(0, len(longest) - 8, 8):
        assert sum(longest[start : start + 8]) / 8 == pytest.approx(overall, rel=0.15)


def test_seconds_to_a_loss() -> None:
    points = [Point(100, 10.0, 1, 3.0), Point(200, 20.0, 2, 2.8), Point(300, 30.0, 3, 2.7)]
    assert seconds_to(points, 2.9) == pytest.approx(15)
    assert seconds_to(points, 3.1) == 10
    assert seconds_to(points, 2.6) is None


def test_compiling_is_not_counted() -> None:
    def window(seconds: float, steps: int) -> Window:
        return Window(seconds, seconds, steps, proteins=1, residues=100, attended_pairs=1, slots=1, loss=3)

    points = points_of([window(500, 2), window(30, 10), window(30, 10)], [2.9, 2.8])
    assert points == [Point(200, 36.0, 12, 2.9), Point(300, 66.0, 22, 2.8)]
