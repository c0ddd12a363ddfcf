"""Table of the operator commands: their JSON forms and exit statuses.

``python -m tools.documents.json_page`` writes ``docs/json.md``, ``docs/json-operations.md`` and
``docs/json-capacity.md`` from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from seqlm.training.command_line import INTERRUPTED, OUTPUT_CLOSED, USAGE_ERROR

DONE = 0
COMMON_STATUSES = {
    USAGE_ERROR: "wrong usage, a wrong file, or a refusal of AWS or the scheduler; `error` has the message",
    INTERRUPTED: "interrupted by Ctrl-C",
    OUTPUT_CLOSED: "the reader of the output, such as `head`, closed it before the command ended",
}
"""Exit statuses of every command. A defect of the program ends with 1 and a traceback on standard error."""


@dataclass(frozen=True)
class Command:
    """JSON form and exit statuses of a command."""

    module: str
    """Module that runs."""
    statuses: Mapping[int, str]
    """Meanings of the exit statuses that are not common to all commands."""
    fields: Mapping[str, str]
    """Meanings of the fields of ``result``, by path."""
    word: str = ""
    """Subcommand; empty if the module has only one command."""
    typed: str = ""
    """Command to type, if it is not ``make <name> --silent ARGS=--json``."""


ACTIVITY = {
    "operations[].time": "time of one of the newest operations; null if they were not read",
    "operations[].type": "type of the operation",
    "operations[].status": "status of the operation",
    "operations[].details": "what it does in each group, while it is in progress",
    "events[].time": "time of one of the newest events; null if they were not read",
    "events[].level": "level of the event",
    "events[].place": "group and instance",
    "events[].description": "description of the event",
}
"""Fields of HyperPod's operations and events."""
IMAGES = {
    "images[].group": "group of nodes; null if the images were not read",
    "images[].instance_type": "type of these nodes, of which a group may have several",
    "images[].release": "release of HyperPod's image that they run, or `not reported`",
    "images[].status": "status of the image that HyperPod reports, such as `UpdateAvailable`",
    "images[].num_nodes": "number of the group's nodes with this image",
}
"""Fields of the images that nodes run."""
STACKS = {
    "stacks[].name": "existing stack of the cluster",
    "stacks[].status": "its status in CloudFormation",
    "stacks[].failures[].logical_id": "resource that failed in the last change, the newest first, at most 20",
    "stacks[].failures[].type": "its type in CloudFormation",
    "stacks[].failures[].reason": "reason that CloudFormation reports",
}
"""Fields of stacks after a change."""
OF_CDK = (
    "the CDK's own status for every other failure, mostly 1; its messages are on standard error"
)
NODE_STATUSES = {
    DONE: "the service accepted all nodes, or they take jobs again (`--resume`)",
    1: "the service refused a node, or jobs still run",
}
NODE_FIELDS = {
    "jobs[]": "jobs or pods on the nodes: before the wait, and after it those that still run, as text",
    "nodes[].name": "node of the request; null if no request was sent",
    "nodes[].instance_id": "its instance id",
    "nodes[].failure": "reason of the service's refusal; null if it accepted the node",
    "resumed[]": "with `--resume`: nodes that take jobs again",
}
USED = {
    "node_hours": "hours of whole nodes",
    "gpu_hours": "hours of GPUs or Neuron devices",
    "usd": "USD on demand of the hours with a price",
    "unpriced_node_hours": "node hours without a known price",
}
"""Fields of hours and their cost."""
REPORTED = {"gpu": "GPUs", "neuron_core": "NeuronCores", "vcpu": "processors"}
"""Resources of AWS's usage report."""
SLURM_FAILED = "Slurm does not answer; `error` has its message"
JOBS_SUBMIT = "make train-fsdp --silent CONFIG=esm2_650m TARGET=slurm SUBMIT=--json"
CLUSTER = {"cluster": "name of the cluster", "region": "AWS region"}
OFFERING = {
    "id": "id of the offering, for `OFFERING`",
    "capacity": "number, type and zone of the instances, as text",
    "start": "start in UTC; null if the service names none",
    "end": "end in UTC; null if the service names none",
    "hours": "duration in hours",
    "amount": "price of the whole offering, as the service writes it",
    "currency": "currency of the amount",
}
"""Fields of an offering of a training plan."""
PLAN = {
    "name": "name of the plan, for `PLAN`",
    "arn": "its ARN, for `training_plan_arn`",
    "state": "`Pending`, `Scheduled`, `Active`, `Expired` or `Failed`",
    "capacity": "number, type and zone of the instances, as text",
    "num_instances": "number of instances",
    "num_free": "instances that no group uses",
    "start": "start in UTC; null if the service names none",
    "end": "end in UTC, with extensions; null if the service names none",
    "amount": "price that was paid, as the service writes it; null if it names none",
    "currency": "currency of the amount",
}
"""Fields of a training plan."""
PURCHASE = {
    **{f"offering.{name}": text for name, text in OFFERING.items()},
    "is_bought": "whether it was bought; null if that is not known, or nothing was sent",
    **{f"plan.{name}": f"{text}, after the purchase" for name, text in PLAN.items()},
}
PURCHASE_STATUSES = {
    DONE: "bought",
    1: "it is not known whether the service has carried out the purchase",
}
DEPLOYMENT_COMMANDS: Mapping[str, Command] = {
    "preflight": Command(
        "tools.preflight",
        {
            DONE: "ready to deploy",
            1: "a check failed, so the deployment would fail",
            3: "no check failed, but some could not be made",
        },
        {
            **CLUSTER,
            "ready": "true, false, or null if a check could not be made",
            "findings[].level": "`OK`, `WARN`, `UNKNOWN` or `FAIL`",
            "findings[].subject": "subject of the check",
            "findings[].message": "finding",
            "findings[].action": "action to take; empty if none is needed",
        },
    ),
    "cost": Command(
        "tools.cost",
        {DONE: "printed"},
        {
            "name": "name of the cluster or endpoint",
            "kind": "`slurm`, `eks` or `endpoint`",
            "region": "AWS region",
            "monthly_usd": "USD per month of all lines with a price",
            "hourly_usd": "the same per hour",
            "lines[].service": "AWS service",
            "lines[].dimensions": "what is billed",
            "lines[].key": "key of the price",
            "lines[].scope": "`nodes` bills until `make destroy`, `kept` until `make teardown`",
            "lines[].monthly_usd": "USD per month; null if no price is known",
            "lines[].is_borrowed": "whether the price belongs to another region or product",
            "unpriced[]": "keys without a known price, which are not in the totals",
            "notes[]": "assumptions and notes, as text",
        },
    ),
    "plan": Command(
        "tools.plan",
        {DONE: "the run fits", 1: "the run does not fit into the memory of the GPUs"},
        {
            "run": "name of the run",
            "cluster": "name of the cluster",
            "group": "instance group",
            "instance_type": "instance type",
            "nodes": "number of nodes",
            "devices": "number of GPUs or NeuronCores",
            "warnings[]": "limits beyond which nothing was tried",
            "fits": "whether the run fits into the memory of a device",
            "memory_bytes": "bytes of a device that the run needs",
            "usable_bytes": "bytes of a device that a run can use",
            "changes[]": "overrides with which the run would fit, each for `ARGS`",
            "residues_per_second.low": "lower estimate; null if the run does not fit, like all below",
            "residues_per_second.high": "higher estimate",
            "hours.low": "hours at the higher speed",
            "hours.high": "hours at the lower speed",
            "nodes_usd.low": "USD for the nodes at the higher speed; null without a known price",
            "nodes_usd.high": "USD for the nodes at the lower speed; null without a known price",
            "cluster_usd.low": "USD for the whole cluster in that time; null without a known price",
            "cluster_usd.high": "the same at the lower speed; null without a known price",
            "save_every_seconds": "recommended time between checkpoints",
            "memory_states_bytes": "bytes of a node for states in memory, at most; 0 if the run keeps none",
            "memory_states_usable_bytes": "bytes of a node that they can use; null if the run keeps none. If "
            "they need more, none are kept",
        },
    ),
    "prices": Command(
        "tools.cost.prices",
        {DONE: "written"},
        {
            "region": "AWS region",
            "source": "`price-list-api` or `price-list-files`",
            "lines[]": "file, changes, and prices that were left as they are, as text",
        },
    ),
    "diff": Command(
        "tools.stacks.diff",
        {DONE: "nothing is certain to be lost", 1: "data is lost, or the update is refused"},
        {
            **CLUSTER,
            "stacks[]": "stacks that were compared",
            "losses[].stack": "stack of a resource that cannot be restored",
            "losses[].logical_id": "logical id of the resource",
            "losses[].type": "its type in CloudFormation",
            "losses[].kind": "`is replaced`, `is deleted` or `may be replaced`",
            "losses[].reason": "cause",
            "losses[].is_certain": "whether it happens for certain",
            "losses[].is_kept": "whether the old resource stays in the account",
            "notices[].stack": "stack of a change with a consequence",
            "notices[].logical_id": "logical id of the resource",
            "notices[].text": "consequence",
            "notices[].is_certain": "whether it happens for certain",
            "refused[]": "reasons for which CloudFormation or `make deploy` will refuse an update",
        },
    ),
    "bootstrap": Command(
        "tools.stacks.deploy",
        {DONE: "the account has what the CDK deploys with", 1: OF_CDK},
        CLUSTER,
        word="bootstrap",
    ),
    "deploy": Command(
        "tools.stacks.deploy",
        {DONE: "deployed", 1: f"nodes are missing and the file has `wait: workers`, or {OF_CDK}"},
        {
            **CLUSTER,
            **STACKS,
            "groups[].name": "group of nodes",
            "groups[].wanted": "wanted nodes",
            "groups[].running": "running nodes",
            "missing[]": "groups with missing nodes, as text",
            **ACTIVITY,
        },
        word="deploy",
        typed='make deploy --silent ARGS="--json --require-approval never"',
    ),
    "destroy": Command(
        "tools.stacks.deploy",
        {DONE: "destroyed", 1: OF_CDK},
        {**CLUSTER, **STACKS},
        word="destroy",
        typed='make destroy --silent ARGS="--json --force"',
    ),
    "teardown": Command(
        "tools.stacks.teardown",
        {DONE: "deleted, nothing to delete, or planned with `--dry-run`"},
        {
            **CLUSTER,
            "stacks[]": "stacks to delete, in this order",
            "lost[].id": "resource with data that is lost for good",
            "lost[].type": "its type in CloudFormation",
            "kept[].id": "resource that stays in the account",
            "kept[].type": "its type in CloudFormation",
            "kept[].delete": "command that deletes it; empty if none is needed",
            "service_logs[]": "log groups that stay",
            "network_held_by[]": "resources because of which the network stays",
            "deleted[]": "stacks that were deleted; after an error, the others are left",
        },
        typed='make teardown --silent ARGS="--json --dry-run"',
    ),
    "mirror-downloads": Command(
        "tools.images.mirror_downloads",
        {
            DONE: "all copies are there, or none are needed",
            1: "no program here can copy some images",
        },
        {
            "files[]": "files in the bucket",
            "images[].tag": "tag of an image in the repository",
            "images[].is_there": "whether the repository has it",
        },
    ),
    "charts": Command(
        "tools.kubernetes.charts",
        {DONE: "all charts are there"},
        {"folder": "folder of the charts", "charts[]": "names of the charts"},
    ),
    "image": Command(
        "tools.images.build",
        {DONE: "built"},
        {
            "image": "local name of the image",
            "can_be_pushed": "false for an image with changes that are not committed",
        },
    ),
    "import-image": Command(
        "tools.images.import_image",
        {DONE: "imported"},
        {"file": "file for `IMAGE`", "image": "image by digest"},
        typed="make image --silent TARGET=slurm ARGS=--json",
    ),
    "push": Command(
        "tools.images.build",
        {DONE: "the repository has the image"},
        {"image": "image by digest, for `IMAGE` on EKS", "tag": "its tag"},
        word="--push",
    ),
}
"""Commands that plan a cluster, create it, end it, and build its images."""
OPERATION_COMMANDS: Mapping[str, Command] = {
    "submit": Command(
        "tools.jobs",
        {DONE: "submitted, or manifests written with `--to`"},
        {
            "job": "id of the job",
            "places[].name": "`log`, `metrics`, `report`, `results`, `pods` or the like",
            "places[].value": "path on the shared file system, or text",
            "next[]": "commands to type next",
            "written[]": "with `--to` on EKS: files and what to do with them, as text",
        },
        word="submit",
        typed=JOBS_SUBMIT,
    ),
    "status": Command(
        "tools.jobs",
        {DONE: "printed", 1: SLURM_FAILED},
        {
            "jobs[].job": "id of a job in the queue; on EKS of any job that exists",
            "jobs[].name": "Slurm's name of the job; the stage on EKS",
            "jobs[].state": "state that the scheduler reports",
            "jobs[].time": "time that the job has run; its age on EKS",
            "jobs[].nodes": "number of nodes, as text; null on EKS",
            "jobs[].where": "nodes, or the reason to wait; null on EKS",
            "runs[].job": "one of the five newest jobs",
            "runs[].run": "name of its run",
            "runs[].state": "state; `ENDED` for a job that left Slurm's queue",
            "runs[].log": "last line of the log",
            "runs[].metrics": "last line of the training's metrics, JSON as text; null on EKS",
            **IMAGES,
            **ACTIVITY,
            "plans[].name": "training plan of the cluster file; null if it has none",
            "plans[].state": "its state, or `not found`",
            "plans[].end": "its end in UTC",
            "plans[].days_left": "days to the end; null if the service names no end",
            "plans[].groups[]": "groups that use it",
        },
        word="status",
    ),
    "tail": Command(
        "tools.jobs",
        {DONE: "the job has ended", 1: SLURM_FAILED},
        {"lines[]": "last lines of the log, at most 200; all of them go to standard error"},
        word="tail",
        typed="make tail --silent JOB=<job> ARGS=--json",
    ),
    "cancel": Command(
        "tools.jobs",
        {DONE: "the job saves and ends, or had ended", 1: SLURM_FAILED},
        {"lines[]": "what happens to the job, as text"},
        word="cancel",
        typed="make cancel --silent JOB=<job> ARGS=--json",
    ),
    "fetch": Command(
        "tools.jobs",
        {DONE: "fetched"},
        {
            "folder": "folder of the run on this machine",
            "files[]": "names of the files and folders there",
            "left[]": "files that were too large, as text",
        },
        word="fetch",
        typed="make fetch --silent JOB=<job> ARGS=--json",
    ),
    "logs": Command(
        "tools.nodes.logs",
        {DONE: "printed"},
        {
            "nodes[].name": "node; null if it no longer exists",
            "nodes[].group": "its group",
            "nodes[].instance_id": "its instance id",
            "nodes[].state": "`done`, `failed`, `unfinished` or `silent`, of the last run of its setup",
            "nodes[].result": "end of the run, or the last error",
            "lines[]": "last lines of the logs, at most 200; null for more than 20 nodes and with `--all`",
        },
    ),
    "connect": Command(
        "tools.nodes.connect",
        {DONE: "printed"},
        {
            "cluster": "name of the cluster",
            "nodes[].name": "node",
            "nodes[].host_name": "name within the VPC and in Slurm; empty until the node has one",
            "nodes[].instance_id": "instance id",
            "nodes[].instance_type": "instance type",
            "nodes[].status": "status that HyperPod reports",
        },
        typed='make connect --silent ARGS="--json --list"',
    ),
    **{
        action: Command(
            "tools.nodes.actions",
            NODE_STATUSES,
            NODE_FIELDS,
            word=action,
            typed=f'make {action} --silent NODE=<node>{target} ARGS="--json --yes"',
        )
        for action, target in (
            ("replace", ""),
            ("reboot", ""),
            ("health-check", ""),
            ("move", " TO=<group>"),
        )
    },
    "patch": Command(
        "tools.nodes.patch",
        {DONE: "the service accepted the update", 1: "jobs run, and the update is all at once"},
        {
            **IMAGES,
            "jobs[]": "jobs or pods on the nodes before the request, as text",
            "groups[]": "groups whose update has begun; null if no request was sent",
        },
        typed='make patch --silent GROUP=<group> ARGS="--json --yes"',
    ),
    "migrate": Command(
        "tools.migrate",
        {DONE: "nothing is left to copy", 1: "something is left, see `steps`"},
        {
            "source": "name of the old cluster",
            "target": "name of the new cluster",
            "record": "file with the record of the steps",
            "applied": "whether the steps were carried out, by `--apply`",
            "lines_to_add[]": "lines that the new cluster's file lacks (`+`), and that they replace (`-`)",
            "steps[].name": "`export`, `objects`, `import`, `homes`, `shared files` or `accounting`",
            "steps[].left[]": "what is left, as text; null with `--status`, which does not look",
            "steps[].notes[]": "differences that stay, as text; null with `--status`",
            "steps[].done": "UTC time of the last end of the step; null before",
            "steps[].result": "what it did then; null before",
            "by_hand[]": "what people do afterwards, as text; null with `--status`",
        },
        typed='make migrate --silent FROM=<cluster> TO=<cluster> ARGS="--json --apply --yes"',
    ),
    "apply-lifecycle": Command(
        "tools.nodes.apply_lifecycle",
        {DONE: "done on all nodes", 1: "not done on some nodes"},
        {
            "source": "address of the scripts that were applied",
            "undone[]": "nodes that are not done, as text",
        },
    ),
}
"""Commands about jobs and nodes."""
CAPACITY_COMMANDS: Mapping[str, Command] = {
    "usage": Command(
        "tools.usage",
        {DONE: "printed"},
        {
            **CLUSTER,
            "since": "begin of the period, in UTC",
            "until": "end of the period, or now if that is earlier",
            **{
                f"{group}[].{name}": text
                for group in ("accounts", "users", "instance_types")
                for name, text in {
                    "name": "account, user or type; `(none)` if it is not recorded",
                    "num_jobs": "number of jobs",
                    **USED,
                }.items()
            },
            "jobs[].job": "job, with a row for each instance type that it had",
            "jobs[].name": "its name",
            "jobs[].user": "its user; empty on EKS",
            "jobs[].account": "its account; the namespace on EKS",
            "jobs[].partition": "its partition; Kueue's queue on EKS",
            "jobs[].instance_type": "instance type; `not known` for nodes that no longer exist",
            "jobs[].states[]": "state of each allocation or pod, such as `REQUEUED`",
            "jobs[].first_start": "start of the first allocation, also before the period",
            "jobs[].last_end": "end of the last allocation, also after the period; null if it runs",
            "jobs[].node_hours": "hours of whole nodes in the period",
            "jobs[].gpu_hours": "hours of GPUs or Neuron devices in the period",
            "jobs[].usd": "USD on demand; null without a known price",
            **{f"used.{name}": f"{text}, of all jobs" for name, text in USED.items()},
            **{f"idle.{name}": f"{text}, without jobs" for name, text in USED.items()},
            **{f"capacity.{name}": f"{text}, of all nodes for jobs" for name, text in USED.items()},
            "without_end[]": "jobs that are left out, because no end is recorded",
            "teams[].namespace": "namespace; `--source report` has these fields instead of those above",
            "teams[].team": "its team of task governance",
            "teams[].instance_type": "instance type",
            **{
                f"teams[].{name}_hours{suffix}": f"hours of {plural}{text}"
                for name, plural in REPORTED.items()
                for suffix, text in {
                    "": "",
                    "_allocated": ", within the team's quota",
                    "_borrowed": ", on what other teams lent",
                }.items()
            },
            "teams[].usd": "USD on demand; null without a known price",
            "tasks[].task": "task of the report",
            "tasks[].namespace": "its namespace",
            "tasks[].team": "its team",
            "tasks[].instance_type": "instance type",
            "tasks[].states[]": "state after each time in which it ran",
            "tasks[].priority_class": "its priority class",
            "tasks[].first_start": "first start in the period",
            "tasks[].last_end": "last end in the period",
            **{
                f"tasks[].{name}_hours": f"hours of {plural}, at least"
                for name, plural in REPORTED.items()
            },
            "missing_days[]": "days without any hours",
            "scanned_bytes": "bytes that Athena read, and bills",
            "notes[]": "assumptions and limits, as text",
        },
        typed="make usage --silent SINCE=2026-11-01 UNTIL=2026-12-01 ARGS=--json",
    ),
    "plans-search": Command(
        "tools.training_plans",
        {DONE: "printed"},
        {
            "region": "AWS region",
            **{f"offerings[].{name}": text for name, text in OFFERING.items()},
        },
        word="search",
        typed="make plans-search --silent TYPE=ml.p5.48xlarge NODES=8 DAYS=14 ARGS=--json",
    ),
    "plans-list": Command(
        "tools.training_plans",
        {DONE: "printed"},
        {"region": "AWS region", **{f"plans[].{name}": text for name, text in PLAN.items()}},
        word="list",
    ),
    "plans-buy": Command(
        "tools.training_plans",
        PURCHASE_STATUSES,
        PURCHASE,
        word="buy",
        typed="make plans-buy --silent PLAN=<name> OFFERING=<offering> "
        "TYPE=ml.p5.48xlarge NODES=8 DAYS=14 ARGS=--json",
    ),
    "plans-extend": Command(
        "tools.training_plans",
        PURCHASE_STATUSES,
        PURCHASE,
        word="extend",
        typed="make plans-extend --silent PLAN=<name> OFFERING=<offering> ARGS=--json",
    ),
}
"""Commands about training plans, and about the use of nodes."""
COMMANDS: Mapping[str, Command] = {
    **DEPLOYMENT_COMMANDS,
    **OPERATION_COMMANDS,
    **CAPACITY_COMMANDS,
}
"""Commands by their names, which are targets of the Makefile, except those of ``NO_TARGETS``."""
NO_TARGETS = {"submit", "import-image"}
"""Commands that targets with other names run on Slurm or EKS."""
WITHOUT_JSON: Mapping[str, str] = {
    "synth": "it is the CDK itself, and its result is the folder `cdk.out`",
    "bandwidth": "it is a submission, see `submit`, or a measurement on this machine",
}
"""Targets for operators without a JSON form, with the reason."""
RUN_COMMANDS: Mapping[str, Command] = {
    "runs": Command(
        "seqlm",
        {DONE: "printed"},
        {
            "runs[].name": "name of the run's folder",
            "runs[].kind": "kind of the run, such as `pretraining`",
            "runs[].state": "`running`, `finished`, `stopped` or `failed`",
            "runs[].step": "last step in its record",
            "runs[].score_name": "key score of its kind; null before the first evaluation",
            "runs[].score": "value of the score",
            "runs[].started": "UTC time of its last start",
            "runs[].seconds": "time of all its starts",
            "num_matching": "number of runs that the filters keep; the newest 50 are listed without `--all`",
            "num_runs": "number of runs in the folder",
        },
        word="runs",
    ),
    "compare": Command(
        "seqlm",
        {DONE: "printed"},
        {
            "fields": "values of the fields of run files that differ, by field and run",
            "scores": "scores, by name and run",
            "notes[]": "notes, as text",
        },
        word="compare",
        typed='make compare --silent ARGS="<run> <run> --json"',
    ),
}
"""Commands of `seqlm`. Unknown options, and errors of a file system, end them without a document."""


def top_level(fields: Mapping[str, str]) -> list[str]:
    """Return the names of the fields of ``result`` itself."""
    return list(dict.fromkeys(path.partition(".")[0].removesuffix("[]") for path in fields))
