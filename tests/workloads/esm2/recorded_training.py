"""``workloads.esm2.train`` for tests, changed by environment variables.

RECORD_TO: folder for the ids and targets of every micro-batch. HOLD_SECONDS: time that a micro-batch takes
at least, so that a signal meets the run halfway. FAIL_RANK, FAIL_AFTER: that process fails after as many.
"""

from __future__ import annotations

import json
import os
import time
from itertools import count
from pathlib import Path
from typing import Any

from workloads.esm2 import train
from workloads.esm2.command_line import run_command
from workloads.esm2.masking import mask_pack

calls = count(1)


def recording_mask_pack(*arguments: Any) -> Any:
    pack = mask_pack(*arguments)
    if "RECORD_TO" in os.environ:
        record = {"tokens": pack.tokens.tolist(), "targets": pack.targets.tolist()}
        with (Path(os.environ["RECORD_TO"]) / f"rank-{os.environ['RANK']}.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
    time.sleep(float(os.environ.get("HOLD_SECONDS", "0")))
    if os.environ.get("FAIL_RANK") == os.environ["RANK"] and next(calls) > int(os.environ["FAIL_AFTER"]):
        raise MemoryError("only this process ran out of memory")
    return pack


if __name__ == "__main__":
    train.mask_pack = recording_mask_pack  # type: ignore[attr-defined]
    run_command(train.main)
