"""The check of all-reduce with a process that gives wrong numbers, or comes too late: ``wrong|late``."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch.distributed as dist

from workloads.esm2.network import check

SECONDS = 6.0
BAD_RANK = "1"


def wrong(tensor: Any, *arguments: Any, **options: Any) -> Any:
    tensor[5] += 1
    return all_reduce(tensor, *arguments, **options)


all_reduce = dist.all_reduce
if os.environ["RANK"] == BAD_RANK and sys.argv[1] == "wrong":
    dist.all_reduce = wrong
if os.environ["RANK"] == BAD_RANK and sys.argv[1] == "late":
    time.sleep(3 * SECONDS)
check.main(SECONDS)
