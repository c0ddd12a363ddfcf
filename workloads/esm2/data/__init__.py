"""From protein FASTA to shards that training memory-maps."""
