"""JSON schemas of cluster and endpoint files, for editors: ``python -m config.reading.schema``."""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from config.cluster_kinds import KINDS, AnyCluster
from config.endpoint import Endpoint
from config.facts.instance_catalogue import HOSTING_TYPES, INSTANCE_TYPES
from config.facts.regions import ZONE_ID_PREFIXES
from config.reading.endpoint_file import GIVEN

SCHEMA = Path("clusters/cluster.schema.json")
ENDPOINT_SCHEMA = Path("endpoints/endpoint.schema.json")


def schema_text() -> str:
    """Return the schema of cluster files. Regions and instance types are rules in the code and lists here."""
    schema = TypeAdapter(AnyCluster).json_schema()
    for section in schema["$defs"].values():
        properties = section["properties"]
        if "instance_type" in properties:
            one = properties["instance_type"]
            one["enum"] = list(INSTANCE_TYPES) if "type" in one else [*INSTANCE_TYPES, None]
        if "instance_types" in properties:
            properties["instance_types"]["items"]["enum"] = list(INSTANCE_TYPES)
    for kind in KINDS.values():
        schema["$defs"][kind.__name__]["properties"]["region"]["enum"] = list(ZONE_ID_PREFIXES)
    return _text(schema)


def endpoint_schema_text() -> str:
    """Return the schema of endpoint files. A deployment may give image and model instead."""
    schema = Endpoint.model_json_schema()
    schema["required"] = [name for name in schema["required"] if name not in GIVEN]
    schema["properties"]["region"]["enum"] = list(ZONE_ID_PREFIXES)
    schema["properties"]["instance_type"]["enum"] = list(HOSTING_TYPES)
    return _text(schema)


def _text(schema: dict[str, Any]) -> str:
    """Return the schema as JSON in the dialect of the YAML language server."""
    return (
        json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", **schema}, indent=2)
        + "\n"
    )


if __name__ == "__main__":
    for path, text in ((SCHEMA, schema_text()), (ENDPOINT_SCHEMA, endpoint_schema_text())):
        path.write_text(text)
        print(path)
