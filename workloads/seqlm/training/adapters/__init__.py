"""LoRA by peft, and weights of four bits beside it, for DDP and FSDP2."""

import logging

# peft imports bitsandbytes, which tells everyone with a CPU that it does without a kernel of the hub's.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
