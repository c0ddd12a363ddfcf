"""DDP of both versions of torch: 2.13 renamed an argument that 2.11 has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import EsmConfig

from seqlm.proteins.model.pretrained import on_meta
from seqlm.training import parallel
from seqlm.training.processes import Processes

BOTH_FAMILIES = True


class Ddp211(nn.Module):
    """Stand-in with the arguments of torch 2.11 that are used."""

    def __init__(
        self,
        module: nn.Module,
        device_ids: list[torch.device] | None = None,
        broadcast_buffers: bool = True,
        gradient_as_bucket_view: bool = False,
    ) -> None:
        super().__init__()
        self.module = module
        self.syncs_buffers = broadcast_buffers


class Ddp213(nn.Module):
    """Stand-in with the arguments of torch 2.13, which warns of the former name."""

    def __init__(
        self,
        module: nn.Module,
        device_ids: list[torch.device] | None = None,
        broadcast_buffers: bool | None = None,
        gradient_as_bucket_view: bool = False,
        forward_sync_buffers: bool | None = None,
    ) -> None:
        super().__init__()
        assert broadcast_buffers is None
        self.module = module
        self.syncs_buffers = forward_sync_buffers


@pytest.mark.parametrize("ddp", [Ddp211, Ddp213])
def test_buffers_are_not_sent_at_every_step(
    ddp: type[nn.Module], tiny_config: EsmConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "DistributedDataParallel", ddp)
    control: Any = None  # no process is reached
    here = Processes(0, 2, torch.device("cpu"), control)
    model = on_meta(tiny_config)
    found: Any = parallel.in_ddp(model, here)
    assert found.module is model and found.syncs_buffers is False
