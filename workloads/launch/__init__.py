"""Ways to start a stage: on this machine, and on clusters."""
