"""A cluster's templates as a graph in Graphviz's language."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tools.diagram_parts import CLUSTER, LEFT_OUT, LINKS, PARTS, PASSED_THROUGH, SILENT, verb
from tools.template_graph import Resource, ResourceId, TemplateGraph

COLOURS = {
    "Network": "#dbe4ee",
    "Storage": "#d7ecd9",
    "Studio": "#d5eef0",
    "HyperPod": "#fde3c8",
    "Observability": "#e6dcf2",
}
"""Of stacks, in the order of deployment."""
MAX_LINES = 10
"""Of the list in one node."""
_HEAD = """digraph cluster {
  graph [rankdir=LR, compound=true, nodesep=0.25, ranksep=1.1, pad=0.2]
  graph [bgcolor=white, fontname="Helvetica", fontsize=12]
  node [shape=box, style="rounded,filled", color="#5b6770", fontname="Helvetica", fontsize=11]
  edge [color="#5b6770", fontname="Helvetica", fontsize=9, fontcolor="#39424a", arrowsize=0.7]
"""


@dataclass
class Node:
    stack: str
    lines: list[str]
    in_vpc: bool
    kind: str
    box: str = ""
    """The cluster whose group it is."""


@dataclass
class Drawing:
    nodes: dict[str, Node] = field(default_factory=dict)
    of: dict[ResourceId, str] = field(default_factory=dict)
    """The node of a resource; a cluster's is the first one of its box."""
    boxes: dict[str, list[str]] = field(default_factory=dict)
    """Nodes of each cluster's groups, by its label."""


def dot(graph: TemplateGraph) -> str:
    """The whole picture: the VPC with what lies in it, the rest beside it, arrows, and whose is what."""
    drawing = Drawing()
    for key, resource in graph.resources.items():
        if resource.kind == CLUSTER:
            _add_groups(drawing, graph, key, resource)
        elif resource.kind in PARTS and not resource.path.startswith(LEFT_OUT):
            _add(drawing, graph, key, resource)
    _add_endpoints(drawing, graph)
    lines = [_HEAD, *_placed(drawing, graph)]
    for (source, target, label), extra in sorted(_arrows(drawing, graph).items()):
        lines.append(f"  {source} -> {target} [label={_quoted(label)}{extra}]")
    return "\n".join([*lines, *_legend(graph), "}", ""])


def _add(drawing: Drawing, graph: TemplateGraph, key: ResourceId, resource: Resource) -> None:
    part = PARTS[resource.kind]
    name = _identifier(resource.stack, resource.kind if part.together else resource.logical_id)
    title, *more = part.words(resource)
    node = drawing.nodes.setdefault(
        name,
        Node(resource.stack, [title], _in_vpc(graph, resource.stack, resource.properties), resource.kind),
    )
    node.lines += [line for line in more if line not in node.lines]
    drawing.of[key] = name


def _add_groups(drawing: Drawing, graph: TemplateGraph, key: ResourceId, resource: Resource) -> None:
    label = f"HyperPod cluster {resource.properties['ClusterName']}"
    in_vpc = _in_vpc(graph, resource.stack, resource.properties)
    for group in resource.properties["InstanceGroups"]:
        name = _identifier(resource.stack, f"group {group['InstanceGroupName']}")
        lines = [group["InstanceGroupName"], f"{group['InstanceCount']} {group['InstanceType']}"]
        drawing.nodes[name] = Node(resource.stack, lines, in_vpc, CLUSTER, box=label)
        drawing.boxes.setdefault(label, []).append(name)
        drawing.of.setdefault(key, name)


def _add_endpoints(drawing: Drawing, graph: TemplateGraph) -> None:
    """All endpoints of the VPC as one node."""
    found = graph.of_kind("AWS::EC2::VPCEndpoint")
    if not found:
        return
    interfaces = [one for one in found if one.properties.get("VpcEndpointType") == "Interface"]
    lines = ["VPC endpoints"]
    lines += ["S3 (gateway)"] if len(found) > len(interfaces) else []
    lines += [f"{len(interfaces)} interfaces"] if interfaces else []
    drawing.nodes["endpoints"] = Node(found[0].stack, lines, True, "AWS::EC2::VPCEndpoint")


def _in_vpc(graph: TemplateGraph, stack: str, value: Any) -> bool:
    kinds = {graph.resources[key].kind for key in graph.referred(stack, value)}
    return bool(kinds & {"AWS::EC2::Subnet", "AWS::RDS::DBSubnetGroup"})


def _placed(drawing: Drawing, graph: TemplateGraph) -> Iterator[str]:
    """Nodes in their boxes."""
    yield "  subgraph cluster_vpc {"
    yield f"    label={_quoted(_vpc_label(graph))}; labeljust=l; style=rounded"
    yield '    color="#8794a0"; bgcolor="#fafbfc"'
    for number, (label, names) in enumerate(drawing.boxes.items()):
        yield f"    subgraph cluster_box{number} {{"
        yield f'      label={_quoted(label)}; style=rounded; color="#b9751f"'
        # Graphviz stacks them from the bottom.
        yield from (f"      {_node(name, drawing.nodes[name])}" for name in reversed(names))
        yield "    }"
    loose = [(name, node) for name, node in drawing.nodes.items() if not node.box]
    yield from (f"    {_node(name, node)}" for name, node in loose if node.in_vpc)
    yield "  }"
    yield from (f"  {_node(name, node)}" for name, node in loose if not node.in_vpc)


def _vpc_label(graph: TemplateGraph) -> str:
    made = graph.of_kind("AWS::EC2::VPC")
    if not made:
        return "VPC that was there before"
    subnets = graph.of_kind("AWS::EC2::Subnet")
    zones = dict.fromkeys(str(subnet.properties.get("AvailabilityZoneId")) for subnet in subnets)
    return f"VPC {made[0].properties['CidrBlock']} in {', '.join(zones)}"


def _arrows(drawing: Drawing, graph: TemplateGraph) -> dict[tuple[str, str, str], str]:
    """Source, target and label, with further attributes."""
    arrows: dict[tuple[str, str, str], str] = {}
    boxes = {label: f"cluster_box{number}" for number, label in enumerate(drawing.boxes)}
    for key, name in drawing.of.items():
        resource = graph.resources[key]
        if resource.kind != CLUSTER:
            for target in _reached(drawing, graph, resource.stack, resource.properties) - {name}:
                _add_arrow(arrows, drawing, name, target, "")
            continue
        groups = resource.properties["InstanceGroups"]
        rest = {name: value for name, value in resource.properties.items() if name != "InstanceGroups"}
        of_groups = [_reached(drawing, graph, resource.stack, group) for group in groups]
        of_all = set.intersection(*of_groups) | _reached(drawing, graph, resource.stack, rest)
        label = drawing.nodes[name].box
        for target in of_all:
            _add_arrow(arrows, drawing, name, target, f", ltail={boxes[label]}")
        for member, reached in zip(drawing.boxes[label], of_groups, strict=True):
            for target in reached - of_all:
                _add_arrow(arrows, drawing, member, target, "")
    for link in graph.of_kind(*LINKS):
        ends = [
            name for key, name in drawing.of.items() if key in graph.referred(link.stack, link.properties)
        ]
        # From the file system on, where the others' arrows lead to.
        ends.sort(key=lambda name: drawing.nodes[name].kind)
        if len(ends) == 2:
            arrows[ends[0], ends[1], LINKS[link.kind]] = ", dir=both"
    return arrows


def _add_arrow(
    arrows: dict[tuple[str, str, str], str], drawing: Drawing, source: str, target: str, extra: str
) -> None:
    kinds = drawing.nodes[source].kind, drawing.nodes[target].kind
    if kinds not in SILENT:
        arrows[source, target, verb(*kinds)] = extra


def _reached(drawing: Drawing, graph: TemplateGraph, stack: str, value: Any) -> set[str]:
    """Nodes that a piece of a template refers to, also through roles and what else is no node."""
    found: set[str] = set()
    seen: set[ResourceId] = set()
    waiting = list(graph.referred(stack, value))
    while waiting:
        key = waiting.pop()
        if key in seen:
            continue
        seen.add(key)
        if key in drawing.of:
            found.add(drawing.of[key])
        elif graph.resources[key].kind in PASSED_THROUGH:
            waiting += _behind(graph, key)
    return found


def _behind(graph: TemplateGraph, key: ResourceId) -> set[ResourceId]:
    """What a resource lets its users reach. A role: what it allows, and the roles that it may take on."""
    resource = graph.resources[key]
    properties = {
        name: value
        for name, value in resource.properties.items()
        if name not in ("AssumeRolePolicyDocument", "Roles")
    }
    reached = graph.referred(resource.stack, properties)
    if resource.kind == "AWS::IAM::Role":
        for other in graph.of_kind("AWS::IAM::Role", "AWS::IAM::Policy"):
            to_it = other.properties.get("AssumeRolePolicyDocument", other.properties.get("Roles"))
            if key in graph.referred(other.stack, to_it):
                reached.add((other.stack, other.logical_id))
    return reached


def _legend(graph: TemplateGraph) -> Iterator[str]:
    """One node, whose rows are the stacks."""
    stacks = dict.fromkeys(stack for stack, _ in graph.resources)
    order = [stack for part in COLOURS for stack in stacks if part in stack]
    rows = [f'<tr><td bgcolor="{_colour(stack)}">{_html(stack)}</td></tr>' for stack in order]
    form = 'border="0" cellborder="1" cellspacing="3" cellpadding="5" color="#5b6770"'
    table = f"<table {form}>{''.join(rows)}</table>"
    yield "  subgraph cluster_legend {"
    yield '    label="Stacks, in the order of deployment"; style=rounded; color="#c5ccd3"'
    yield f"    legend [shape=plain, style=solid, label=<{table}>]"
    yield "  }"


def _node(name: str, node: Node) -> str:
    title, *more = node.lines
    if len(more) > MAX_LINES:
        more = [*more[:MAX_LINES], f"and {len(more) - MAX_LINES} more"]
    small = [f'<br/><font point-size="9">{_html(line)}</font>' for line in more]
    text = "".join([f"<b>{_html(title)}</b>", *small])
    return f'{name} [label=<{text}>, fillcolor="{_colour(node.stack)}"]'


def _colour(stack: str) -> str:
    return next((colour for part, colour in COLOURS.items() if part in stack), "#ffffff")


def _identifier(*words: str) -> str:
    return "n_" + "_".join("".join(letter if letter.isalnum() else "_" for letter in word) for word in words)


def _html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
