from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """As in the processes that torchrun starts; test processes with more of them get in each other's way."""
    torch.set_num_threads(1)
