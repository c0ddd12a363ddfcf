"""The plan of an epoch and the masks: pure functions, the same everywhere."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from seqlm.proteins.alphabet import CLS, EOS, FIRST_RESIDUE, MASK, NUM_STANDARD_RESIDUES, PAD
from seqlm.proteins.data.prepare import Execution, prepare
from seqlm.proteins.data.sources import ProteinFiles
from seqlm.proteins.model.masking import compiled_masks, mask_pack
from seqlm.proteins.model.packed_model import Pack
from seqlm.proteins.model.protein_packs import ProteinStream
from seqlm.proteins.model.shape import num_rows
from seqlm.training import packing
from seqlm.training.data.limits import Limits
from seqlm.training.hashing import hash64, mix64, mix64_on_device
from seqlm.training.packing import PackShape, PlannedBlock, Position, pack_lengths
from seqlm.training.records import RecordSplit
from seqlm.training.step.loader import step_packs

CPU = torch.device("cpu")


@pytest.fixture
def split(prepared: Path) -> RecordSplit:
    return RecordSplit(prepared, "train")


def stream_of(
    split: RecordSplit, seed: int = 0, num_tokens: int = 512, max_residues: int = 126
) -> ProteinStream:
    return ProteinStream(split, PackShape.of(split, num_tokens, max_residues), seed)


def test_every_protein_once_an_epoch(split: RecordSplit) -> None:
    packs = list(stream_of(split).epoch(0))
    units = np.concatenate([pack.units for pack in packs])
    assert sorted(units.tolist()) == list(range(split.num_units))


def test_epochs_differ_and_repeat_by_seed(split: RecordSplit) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return [
            unit for pack in stream_of(split, seed).epoch(epoch) for unit in pack.units.tolist()
        ]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


def test_packs_hold_whole_crops_with_cls_and_eos(split: RecordSplit) -> None:
    stream = stream_of(split)
    cropped = 0
    for pack in stream.epoch(0):
        host = stream.load(pack)
        assert len(host.tokens) == 512
        for index, place in enumerate(pack.places):
            a = host.cumulative[index]
            b = host.cumulative[index + 1]
            full = split.token_ids(place)
            start = pack.starts[index]
            length = pack.lengths[index]
            assert length == min(len(full), 126)
            assert host.tokens[a] == CLS and host.tokens[b - 1] == EOS
            assert np.array_equal(host.tokens[a + 1 : b - 1], full[start : start + length])
            cropped += len(full) > 126
        end = host.cumulative[len(pack.places)]
        assert (host.tokens[end:] == PAD).all()
        assert np.diff(host.cumulative).max() <= 128
    assert cropped > 10


def test_crops_move_from_epoch_to_epoch(split: RecordSplit) -> None:
    def starts(epoch: int) -> dict[int, int]:
        return {
            int(unit): int(start)
            for pack in stream_of(split).epoch(epoch)
            for unit, start in zip(pack.units, pack.starts, strict=True)
        }

    first = starts(0)
    second = starts(1)
    moved = sum(first[unit] != second[unit] for unit in first)
    assert moved > 10


def test_fill_of_protein_lengths() -> None:
    # UniRef50-like lengths: log-normal, median 200, sigma 0.75, cropped at 1022.
    lengths = (
        np.clip(np.random.default_rng(0).lognormal(np.log(200), 0.75, 16_384), 20, 1022).astype(int)
        + 2
    )
    for capacity in (4096, 16_384, 65_536):
        packed = pack_lengths(lengths, capacity, max_items=capacity)
        assert sorted(packed.items.tolist()) == list(range(len(lengths)))
        packs = np.split(packed.items, packed.bounds[1:-1])
        used = [int(lengths[pack].sum()) for pack in packs]
        assert max(used) <= capacity
        assert lengths.sum() / (len(packs) * capacity) >= 0.985
    assert np.diff(pack_lengths(lengths, 4096, max_items=5).bounds).max() == 5


def test_resume_continues_the_same_packs(split: RecordSplit) -> None:
    stream = stream_of(split)
    whole = list(islice(stream.packs(), 150))
    assert whole[-1][1].epoch >= 1, "the test must cross an epoch"
    for cut in (1, 37, 100):
        rest = list(islice(stream.packs(whole[cut - 1][1]), 150 - cut))
        for (a, position_a), (b, position_b) in zip(whole[cut:], rest, strict=True):
            assert np.array_equal(a.units, b.units) and position_a == position_b


@pytest.mark.parametrize("is_known", [True, False])
def test_a_resume_plans_one_block(
    is_known: bool, split: RecordSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints of earlier versions do not know the block. They give the same packs."""
    monkeypatch.setattr(packing, "BLOCK_UNITS", 16)
    stream = stream_of(split)
    num_blocks = -(-split.num_units // 16)
    whole = list(islice(stream.packs(), 150))
    assert whole[-1][1].epoch >= 1 and num_blocks > 10, "the test must cross an epoch"
    planned: list[int] = []
    plan = stream.plan

    def counting(epoch: int, block: int) -> PlannedBlock:
        planned.append(block)
        return plan(epoch, block)

    monkeypatch.setattr(stream, "plan", counting)
    for cut in range(1, 149):
        position = whole[cut - 1][1]
        is_last = whole[cut][1].block != position.block or whole[cut][1].epoch != position.epoch
        planned.clear()
        if not is_known:
            position = Position(position.epoch, position.pack)
        pack, after = next(stream.packs(position))
        expected, expected_after = whole[cut]
        assert np.array_equal(pack.units, expected.units) and after == expected_after
        if is_known:
            # The packs of a consumed block are planned again only to be passed over.
            assert len(planned) == 1 + is_last


def test_a_position_in_other_data_is_refused(split: RecordSplit) -> None:
    stream = stream_of(split)
    with pytest.raises(ValueError, match="fewer than the 99999 already consumed"):
        next(stream.packs(Position(0, 99_999, 0, 99_000)))
    with pytest.raises(ValueError, match="fewer than the 20 already consumed"):
        next(stream.packs(Position(0, 20, 77, 3)))


def test_position_beyond_the_epoch_is_refused(split: RecordSplit) -> None:
    with pytest.raises(
        ValueError, match=r"epoch 0 has \d+ packs, fewer than the 99999 already consumed"
    ):
        next(stream_of(split).packs(Position(0, 99_999)))


def all_packs_of_step(split: RecordSplit, world_size: int, num_steps: int) -> list[list[Pack]]:
    """Masked packs of each step in the plan's order, put together from what the processes get."""
    stream = stream_of(split)
    per_rank = [
        list(islice(step_packs(stream, Position(), 5, rank, world_size), num_steps))
        for rank in range(world_size)
    ]
    steps = []
    for step in range(num_steps):
        dealt = [[mask_pack(p, 128, 0.15, CPU) for p in ranks[step].packs] for ranks in per_rank]
        assert len({len(packs) for packs in dealt}) == 1, "every process runs as many micro-batches"
        steps.append([pack for together in zip(*dealt, strict=True) for pack in together][:5])
    return steps


@pytest.mark.parametrize("world_size", [2, 3, 5, 8])
def test_ids_and_masks_do_not_depend_on_the_world_size(split: RecordSplit, world_size: int) -> None:
    for alone, shared in zip(
        all_packs_of_step(split, 1, 20), all_packs_of_step(split, world_size, 20), strict=True
    ):
        for a, b in zip(alone, shared, strict=True):
            assert torch.equal(a.tokens, b.tokens) and torch.equal(a.targets, b.targets)


def test_masks_do_not_depend_on_the_packing(split: RecordSplit) -> None:
    """The same residue of the same protein in the same epoch, in packs of 256 and of 1024."""

    def masked_proteins(num_tokens: int) -> dict[int, list[int]]:
        stream = stream_of(split, num_tokens=num_tokens)
        found = {}
        for planned in stream.epoch(2):
            host = stream.load(planned)
            pack = mask_pack(host, 128, 0.15, CPU)
            for index, unit in enumerate(planned.units.tolist()):
                found[unit] = pack.tokens[
                    host.cumulative[index] : host.cumulative[index + 1]
                ].tolist()
        return found

    assert masked_proteins(256) == masked_proteins(1024)


def test_mask_statistics(split: RecordSplit) -> None:
    stream = stream_of(split, num_tokens=2048)
    kinds = np.zeros(4)  # residues, masked, replaced or kept, actually changed to another residue
    for epoch in range(20):
        for planned in stream.epoch(epoch):
            host = stream.load(planned)
            pack = mask_pack(host, 128, 0.15, CPU)
            known = pack.targets != -100
            before = torch.from_numpy(host.tokens).long()
            now = pack.tokens[pack.rows[known]]
            assert torch.equal(before[pack.rows[known]], pack.targets[known])
            untouched = torch.ones(len(before), dtype=torch.bool)
            untouched[pack.rows[known]] = False
            assert torch.equal(before[untouched], pack.tokens[untouched])
            other = now[now != MASK]
            assert (
                (other >= FIRST_RESIDUE) & (other < FIRST_RESIDUE + NUM_STANDARD_RESIDUES)
            ).all()
            changed = (now != MASK) & (now != pack.targets[known])
            kinds += [
                planned.num_record_tokens,
                (now == MASK).sum(),
                (now != MASK).sum(),
                changed.sum(),
            ]
    residues, masked, others, changed = kinds
    assert (masked + others) / residues == pytest.approx(0.15, abs=0.005)
    assert masked / (masked + others) == pytest.approx(0.8, abs=0.01)
    # Half of the rest is drawn anew among 20 residues, of which some equal the old one.
    assert 0.38 < changed / others < 0.5


def test_empty_pack_predicts_nothing(split: RecordSplit) -> None:
    pack = mask_pack(stream_of(split).load(None), 128, 0.15, CPU)
    assert (pack.targets == -100).all() and (pack.token_scale == 0).all()
    assert pack.segments.cumulative.diff().max() <= 128
    assert len(pack.rows) == num_rows(512, 0.15)


def test_crops_are_parts_of_records_whatever_batches_hold_them(
    prepared: Path, tmp_path: Path
) -> None:
    fasta = prepared.parent / "proteins.fasta"
    small = Limits(block_bytes=2000, piece_bytes=3000, shard_bytes=5000, batch_tokens=2500)
    execution = Execution(workers=1, progress=False, limits=small)
    fractions = {"validation_fraction": 0.1, "test_fraction": 0.1}
    prepare(ProteinFiles([fasta]), tmp_path / "out", seed=0, execution=execution, **fractions)
    split = RecordSplit(tmp_path / "out", "train")
    all_places, all_lengths = split.draw(0, split.num_units, seed=0, epoch=0)
    rng = np.random.default_rng(0)
    for number in (1, 2, 40):
        chosen = rng.integers(len(all_places), size=number)
        places = [all_places[index] for index in chosen.tolist()]
        starts = rng.integers(all_lengths[chosen])
        lengths = rng.integers(all_lengths[chosen] - starts + 1)
        expected = [
            split.token_ids(place)[start : start + length]
            for place, start, length in zip(places, starts, lengths, strict=True)
        ]
        found = split.crops(places, starts, lengths)
        assert found.dtype == np.uint8 and np.array_equal(found, np.concatenate(expected))
    assert len({batch for batch, _ in places}) > 2, "several batches must have been read"


def test_compiled_masks_are_the_same(split: RecordSplit, capfd: pytest.CaptureFixture[str]) -> None:
    """One graph for all packs, with gradients and without. On a CPU, where torch would not compile them."""
    stream = stream_of(split)
    counters.clear()
    hosts = [stream.load(planned) for planned in islice(stream.epoch(0), 3)]
    for host in [*hosts, stream.load(None)]:
        expected = mask_pack(host, 128, 0.15, CPU)
        found = mask_pack(host, 128, 0.15, CPU, True)
        with torch.no_grad():
            again = mask_pack(host, 128, 0.15, CPU, True)
        for pack in (found, again):
            for name in ("tokens", "positions", "rows", "targets"):
                assert torch.equal(getattr(pack, name), getattr(expected, name)), name
            assert torch.equal(pack.segments.of_token, expected.segments.of_token)
            torch.testing.assert_close(pack.token_scale, expected.token_scale, atol=1e-6, rtol=0)
    assert counters["stats"]["unique_graphs"] == 1
    assert "warning" not in capfd.readouterr().err


def test_hash_is_the_same_on_host_and_device() -> None:
    words = np.random.default_rng(0).integers(0, 2**64, size=1000, dtype=np.uint64)
    on_device = mix64_on_device(torch.from_numpy(words.view(np.int64)))
    assert np.array_equal(mix64(words), on_device.numpy().view(np.uint64))
    # SplitMix64 seeded with 0 gives this first output (Vigna's reference implementation).
    assert int(mix64(np.array([0x9E3779B97F4A7C15], dtype=np.uint64))[0]) == 0xE220A8397B1DCDAF
    assert len(set(hash64(1, np.arange(10_000)).tolist())) == 10_000
    assert hash64(1, 2)[0] != hash64(2, 1)[0]


def test_masks_are_drawn_without_a_compiler(
    split: RecordSplit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A compiler that fails is reported once, and the numbers are the same."""

    def failing(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", lambda function, **options: failing)
    compiled_masks.cache_clear()
    try:
        stream = stream_of(split)
        for host in (stream.load(planned) for planned in islice(stream.epoch(0), 2)):
            expected = mask_pack(host, 128, 0.15, CPU)
            found = mask_pack(host, 128, 0.15, CPU, True)
            assert torch.equal(found.tokens, expected.tokens)
            assert torch.equal(found.targets, expected.targets)
    finally:
        compiled_masks.cache_clear()
    printed = capsys.readouterr().err
    assert printed.count("warning: masks are not compiled: RuntimeError: no compiler") == 1
