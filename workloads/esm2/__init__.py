"""The ESM-2 protein language model: its data, masks, tasks, inference and server."""
