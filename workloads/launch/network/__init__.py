"""Whether the processes of a job can exchange data, and how fast."""
