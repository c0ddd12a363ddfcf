"""Custom resources of the CDK, done here by what their Lambda functions do; the functions never run."""

from __future__ import annotations

import io
import mimetypes
import uuid
import zipfile
from typing import Any

from tests.local_aws.resource_model import Context, Properties, Resource, client

# What the deployment's handler takes and this copy does too; anything else is refused.
MODELLED = {
    "ServiceToken",
    "SourceBucketNames",
    "SourceObjectKeys",
    "SourceMarkers",
    "SourceMarkersConfig",
    "DestinationBucketName",
    "DestinationBucketKeyPrefix",
    "Prune",
    "RetainOnDelete",
    "WaitForDistributionInvalidation",
    "OutputObjectKeys",
}


class Metadata:
    """AWS::CDK::Metadata, which is nothing but its own declaration."""

    def create(self, context: Context, type_name: str, properties: Properties) -> Resource:
        return Resource(context, type_name, properties, context.logical_id, {})

    def update(self, context: Context, old: Resource, properties: Properties) -> Resource:
        return self.create(context, old.type, properties)

    def delete(self, resource: Resource, policy: str) -> None:
        pass


def _flag(properties: Properties, name: str) -> bool:
    """A property that CloudFormation hands to functions as text; both default to true."""
    return str(properties.get(name, True)).lower() == "true"


def _destination(properties: Properties) -> tuple[str, str]:
    """Bucket, and prefix ending in a slash (empty for the whole bucket)."""
    prefix = properties.get("DestinationBucketKeyPrefix", "").strip("/")
    return properties["DestinationBucketName"], f"{prefix}/" if prefix else ""


def _keys(s3: Any, bucket: str, prefix: str) -> set[str]:
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return {item["Key"] for page in pages for item in page.get("Contents", [])}


def _delete(s3: Any, bucket: str, keys: set[str]) -> None:
    for key in keys:
        s3.delete_object(Bucket=bucket, Key=key)


class BucketDeployment:
    """Custom::CDKBucketDeployment: unpack zipped assets below a prefix of a bucket."""

    def create(self, context: Context, type_name: str, properties: Properties) -> Resource:
        self._copy(context, properties)
        known = {"bucket": properties["DestinationBucketName"], "keys": properties["SourceObjectKeys"]}
        attributes = {
            "DestinationBucketArn": "join('', ['arn:aws:s3:::', bucket])",
            "SourceObjectKeys": "keys",
        }
        return Resource(
            context, type_name, properties, f"aws.cdk.s3deployment.{uuid.uuid4()}", known, attributes
        )

    def update(self, context: Context, old: Resource, properties: Properties) -> Resource:
        """Copy anew; an earlier destination is emptied unless it is to be retained."""
        if old.properties == properties:
            return old
        if _destination(old.properties) != _destination(properties):
            self._empty(old)
        return self.create(context, old.type, properties)

    def delete(self, resource: Resource, policy: str) -> None:
        self._empty(resource)

    def _empty(self, resource: Resource) -> None:
        if not _flag(resource.properties, "RetainOnDelete"):
            s3, (bucket, prefix) = client("s3", resource.context.region), _destination(resource.properties)
            _delete(s3, bucket, _keys(s3, bucket, prefix))

    def _copy(self, context: Context, properties: Properties) -> None:
        unknown = properties.keys() - MODELLED
        markers = [marker for marker in properties.get("SourceMarkers", []) if marker]
        if unknown or markers:
            raise ValueError(f"{context.logical_id}: {sorted(unknown) or markers} is not modelled")
        client("lambda", context.region).get_function(FunctionName=properties["ServiceToken"])
        s3, (bucket, prefix) = client("s3", context.region), _destination(properties)
        sources = zip(properties["SourceBucketNames"], properties["SourceObjectKeys"], strict=True)
        written = set()
        for source_bucket, source_key in sources:
            archive = s3.get_object(Bucket=source_bucket, Key=source_key)["Body"].read()
            with zipfile.ZipFile(io.BytesIO(archive)) as files:
                for name in (name for name in files.namelist() if not name.endswith("/")):
                    content_type = mimetypes.guess_type(name)[0] or "binary/octet-stream"
                    s3.put_object(
                        Bucket=bucket, Key=prefix + name, Body=files.read(name), ContentType=content_type
                    )
                    written.add(prefix + name)
        if _flag(properties, "Prune"):
            _delete(s3, bucket, _keys(s3, bucket, prefix) - written)
