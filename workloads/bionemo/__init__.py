"""ESM-2 by NVIDIA BioNeMo's own entry points, from the same run files, data and launchers as our trainer."""
