"""Fine-tuning: labelled proteins, models with heads, LoRA, scores and reports."""

import logging

# peft imports bitsandbytes, which tells everyone with a CPU that it does without a kernel of the hub's.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
