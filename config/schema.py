"""The cluster file's JSON schema, which editors complete and check from: ``python -m config.schema``."""

from __future__ import annotations

import json
from pathlib import Path

from config.cluster import SlurmCluster
from config.instance_catalogue import INSTANCE_TYPES
from config.regions import ZONE_ID_PREFIXES

SCHEMA = Path("clusters/cluster.schema.json")


def schema_text() -> str:
    """The model's schema; regions and instance types are rules to the model, and lists to an editor."""
    schema = SlurmCluster.model_json_schema()
    schema["properties"]["region"]["enum"] = list(ZONE_ID_PREFIXES)
    schema["$defs"]["InstanceGroup"]["properties"]["instance_type"]["enum"] = list(INSTANCE_TYPES)
    # The dialect that the YAML language server reads.
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", **schema}, indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(schema_text())
    print(SCHEMA)
