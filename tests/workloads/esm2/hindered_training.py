"""``workloads.esm2.train`` for tests, slowed down or made to fail by environment variables.

HOLD_SECONDS: time that a micro-batch takes at least, so that a signal meets the run halfway. FAIL_RANK,
FAIL_AFTER: that process fails after as many micro-batches.
"""

from __future__ import annotations

import os
import time
from itertools import count
from typing import Any

from workloads.esm2 import pretraining, train
from workloads.esm2.command_line import run_command
from workloads.esm2.masking import mask_pack

calls = count(1)


def hindered_mask_pack(*arguments: Any) -> Any:
    time.sleep(float(os.environ.get("HOLD_SECONDS", "0")))
    if os.environ.get("FAIL_RANK") == os.environ["RANK"] and next(calls) > int(os.environ["FAIL_AFTER"]):
        raise MemoryError("only this process ran out of memory")
    return mask_pack(*arguments)


if __name__ == "__main__":
    pretraining.mask_pack = hindered_mask_pack
    run_command(train.main)
