"""The cluster file's JSON schema, which editors complete and check from: ``python -m config.schema``."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import TypeAdapter

from config.cluster_kinds import KINDS, AnyCluster
from config.instance_catalogue import INSTANCE_TYPES
from config.regions import ZONE_ID_PREFIXES

SCHEMA = Path("clusters/cluster.schema.json")


def schema_text() -> str:
    """The models' schema; regions and instance types are rules to the models, and lists to an editor."""
    schema = TypeAdapter(AnyCluster).json_schema()
    for section in schema["$defs"].values():
        if "instance_type" in section["properties"]:
            section["properties"]["instance_type"]["enum"] = list(INSTANCE_TYPES)
    for kind in KINDS.values():
        schema["$defs"][kind.__name__]["properties"]["region"]["enum"] = list(ZONE_ID_PREFIXES)
    # The dialect that the YAML language server reads.
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", **schema}, indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(schema_text())
    print(SCHEMA)
