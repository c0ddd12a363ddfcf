"""``workloads.esm2.train`` that also writes down every micro-batch it masks, for comparison between runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from workloads.esm2 import train
from workloads.esm2.command_line import run_command
from workloads.esm2.masking import mask_pack


def recording_mask_pack(*arguments: Any) -> Any:
    pack = mask_pack(*arguments)
    record = {"tokens": pack.tokens.tolist(), "targets": pack.targets.tolist()}
    folder = Path(os.environ["RECORD_TO"])
    with (folder / f"rank-{os.environ['RANK']}.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    return pack


if __name__ == "__main__":
    train.mask_pack = recording_mask_pack  # type: ignore[attr-defined]
    run_command(train.main)
