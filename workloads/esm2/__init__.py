"""Pre-training, fine-tuning and serving of the ESM-2 protein language model."""
