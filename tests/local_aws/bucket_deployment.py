"""Custom::CDKBucketDeployment, done here by what its Lambda function does; the function never runs."""

from __future__ import annotations

import io
import uuid
import zipfile
from typing import Any

from moto.s3.models import S3Backend, s3_backends

from tests.local_aws.permissions import is_permitted
from tests.local_aws.resource_model import Context, Properties, Resource, client

# What the function takes and this copy heeds, or what changes nothing without a CloudFront distribution.
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
    "OutputObjectKeys",
    "WaitForDistributionInvalidation",
}
ATTRIBUTES = {
    "DestinationBucketArn": "join('', ['arn:aws:s3:::', DestinationBucketName])",
    "SourceObjectKeys": "SourceObjectKeys",
}


def _flag(properties: Properties, name: str) -> bool:
    """A property that CloudFormation hands to functions as text; both that are read default to true."""
    return str(properties.get(name, True)).lower() == "true"


def _destination(properties: Properties) -> tuple[str, str]:
    """Bucket, and prefix ending in a slash (empty for the whole bucket)."""
    prefix = properties.get("DestinationBucketKeyPrefix", "").strip("/")
    return properties["DestinationBucketName"], f"{prefix}/" if prefix else ""


def _storage(context: Context) -> S3Backend:
    """Objects themselves: hundreds of files are stored, and a request for each takes milliseconds."""
    return s3_backends[context.account_id]["aws"]


def _remove(s3: S3Backend, bucket: str, prefix: str, *, but: set[str] | None = None) -> None:
    """Delete what is below ``prefix``, except for the keys ``but``."""
    found, *_ = s3.list_objects(s3.get_bucket(bucket), prefix, None, None, None)
    for name in [item.name for item in found]:
        if name not in (but or set()):
            s3.delete_object(bucket, name)


def _unpack(
    s3: S3Backend, source: tuple[str, str], markers: dict[str, str], bucket: str, prefix: str
) -> set[str]:
    """Store the files of a zipped asset with values in place of the markers; returns their keys."""
    archive = s3.get_object(*source)
    if archive is None:
        raise ValueError(f"there is no object s3://{'/'.join(source)}")
    with zipfile.ZipFile(io.BytesIO(archive.value)) as files:
        names = [name for name in files.namelist() if not name.endswith("/")]
        for name in names:
            body = files.read(name)
            for marker, value in markers.items():
                body = body.replace(marker.encode(), value.encode())
            s3.put_object(bucket, prefix + name, body)
    return {prefix + name for name in names}


class BucketDeployment:
    def create(self, context: Context, type_name: str, properties: Properties) -> Resource:
        self._copy(context, properties)
        physical_id = f"aws.cdk.s3deployment.{uuid.uuid4()}"
        return Resource(context, type_name, properties, physical_id, properties, ATTRIBUTES)

    def update(self, context: Context, old: Resource, properties: Properties) -> Resource:
        """Copy anew; an earlier destination is emptied unless it is to be retained."""
        if old.properties == properties:
            return old
        if _destination(old.properties) != _destination(properties):
            self._empty(old)
        self._copy(context, properties)
        return Resource(
            context, old.type, properties, old.physical_resource_id, properties, ATTRIBUTES
        )

    def delete(self, resource: Resource, policy: str) -> None:
        self._empty(resource)

    def _empty(self, resource: Resource) -> None:
        if not _flag(resource.properties, "RetainOnDelete"):
            _remove(_storage(resource.context), *_destination(resource.properties))

    def _copy(self, context: Context, properties: Properties) -> None:
        unknown: Any = sorted(properties.keys() - MODELLED)
        # Of which the one setting there is escapes values.
        unknown = unknown or [
            config for config in properties.get("SourceMarkersConfig", []) if config
        ]
        if unknown:
            raise ValueError(f"{context.logical_id}: {unknown} is not modelled")
        s3 = _storage(context)
        (bucket, prefix) = _destination(properties)
        sources = list(
            zip(properties["SourceBucketNames"], properties["SourceObjectKeys"], strict=True)
        )
        self._check_rights(
            context,
            properties["ServiceToken"],
            [
                ("s3:PutObject", f"{bucket}/{prefix}*"),
                *(("s3:GetObject", "/".join(item)) for item in sources),
            ],
        )
        markers = properties.get("SourceMarkers") or [{}] * len(sources)
        written: set[str] = set()
        for source, values in zip(sources, markers, strict=True):
            written |= _unpack(s3, source, values, bucket, prefix)
        if _flag(properties, "Prune"):
            _remove(s3, bucket, prefix, but=written)

    def _check_rights(self, context: Context, function: str, needed: list[tuple[str, str]]) -> None:
        """Raise ValueError unless the function exists and its role may do all that is needed."""
        found = client("lambda", context.region).get_function(FunctionName=function)[
            "Configuration"
        ]
        for action, objects in needed:
            if not is_permitted(
                context.account_id, found["Role"], action, f"arn:aws:s3:::{objects}"
            ):
                raise ValueError(
                    f"{context.logical_id}: {found['Role']} may not {action} {objects}"
                )
