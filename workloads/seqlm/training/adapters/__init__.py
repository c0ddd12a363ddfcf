"""LoRA by peft, and weights of four bits beside it, for DDP and FSDP2."""

import logging

# peft imports bitsandbytes, which warns on every CPU that it lacks a kernel of the hub.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
