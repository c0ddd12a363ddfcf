"""Work that a migration leaves to people."""

from collections.abc import Iterator

from config.cluster_kinds import AnyCluster
from config.eks_cluster import EksCluster
from config.slurm_cluster import SlurmCluster, accounting_schema


def by_hand(source: AnyCluster, target: AnyCluster) -> list[str]:
    """Return what people do after the copy, in this order."""
    return list(_lines(source, target))


def _lines(source: AnyCluster, target: AnyCluster) -> Iterator[str]:
    yield (
        f"stop jobs and logins of {source.name}, and run this once more: it copies what has changed since"
    )
    if isinstance(target, EksCluster):
        yield (
            "files outside the linked folder of Lustre: move them below it on the old cluster (such as "
            "/fsx/data) and export again, because pods have no node that copies them"
        )
    if isinstance(source, SlurmCluster) and isinstance(target, SlurmCluster):
        yield _history(source, target)
        yield "jobs that wait or run: submit them again; a training continues from its last checkpoint"
    if isinstance(source, EksCluster) and isinstance(target, EksCluster):
        yield (
            f"nodes with their instances: `make move NODE=<node> TO={target.name}/<group>` moves them, "
            "and keeps capacity of training plans"
        )
    yield f"images: build and push the commit's image for {target.name} (`make image`, `make push`)"
    yield f"schedules, alarms and people's notes that name {source.name}"
    yield f"`make teardown` of {source.name}, after somebody has looked at the copies"


def _history(source: SlurmCluster, target: SlurmCluster) -> str:
    database = target.accounting_database
    if (
        database
        and database.existing
        and source.accounting_database
        and accounting_schema(source.name, source.accounting_database)
        == accounting_schema(target.name, database)
    ):
        return (
            "records of past jobs are in the database that both clusters name: `sacct --clusters=<old name>` "
            "reads them"
        )
    return (
        "records of past jobs stay in the old cluster's database. To keep them in use, name it in "
        "accounting_database.existing, with the old schema_name (docs/migrate.md)"
    )
