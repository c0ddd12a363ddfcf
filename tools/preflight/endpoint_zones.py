"""Check that each interface endpoint is in a zone that its service offers; EC2 refuses it in others."""

from __future__ import annotations

from collections.abc import Iterator

from config.cluster import Cluster, zone_ids
from config.facts.endpoint_services import endpoint_services, whole_name
from tools.preflight.finding import Finding, fail, ok
from tools.preflight.read_only_aws import ReadOnlyAws


def check_endpoint_zones(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    network, own = cluster.network, zone_ids(cluster)
    if not network.interface_endpoints:
        return
    services = {name: whole_name(name, cluster.region) for name in endpoint_services(cluster).values()}
    # A filter returns what exists. ServiceNames would be refused as a whole if one service does not exist.
    details = aws.items(
        "ec2",
        "describe_vpc_endpoint_services",
        "ServiceDetails",
        Filters=[{"Name": "service-name", "Values": list(services.values())}],
    )
    offered = {detail["ServiceName"]: detail["AvailabilityZoneIds"] for detail in details}
    num_right = 0
    for service, full_name in services.items():
        zone = network.endpoint_zones.get(service, own[0])
        zones = sorted(offered.get(full_name, []))
        if zone in zones:
            num_right += 1
            continue
        subject = f"endpoint {service}"
        if not zones:
            action = "turn off the feature that needs it, or set network.interface_endpoints to false"
            yield fail(subject, f"{cluster.region} has no endpoint service {full_name}", action)
            continue
        usable = [name for name in own if name in zones]
        action = f"set network.endpoint_zones to {{{service}: {(usable or zones)[0]}}}"
        if not usable:
            action = f"add a zone of these to the network, and {action}"
        yield fail(subject, f"{full_name} is offered in {', '.join(zones)}, not in {zone}", action)
    if num_right == len(services):
        yield ok("endpoint zones", f"all {num_right} services are offered in the zones of their endpoints")
