"""Rules ask for what is emitted, and Prometheus' own tool finds that they alarm when they should."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from constructs.monitoring.metrics_workspace import alert_manager_config, alert_manager_definition
from monitoring.alert_rules import rules_text
from monitoring.dashboards.selection import Scheduler
from tests.monitoring.alert_cases import CASES, CLUSTERS, rules
from tests.monitoring.promql import metric_names

BY_SCHEDULER = pytest.mark.parametrize("scheduler", CLUSTERS)


@BY_SCHEDULER
def test_every_metric_of_a_rule_is_emitted(
    scheduler: Scheduler, emitted: dict[Scheduler, set[str]]
) -> None:
    recorded: set[str] = set()
    for rule in rules(scheduler):
        asked = metric_names(rule["expr"])
        assert asked and asked <= emitted[scheduler] | recorded, rule
        recorded |= {rule["record"]} if "record" in rule else set()


@BY_SCHEDULER
def test_every_alert_says_what_has_happened_and_what_to_do(scheduler: str) -> None:
    alerts = [rule for rule in rules(scheduler) if "alert" in rule]
    assert len(alerts) >= 6
    for alert in alerts:
        assert set(alert["annotations"]) == {"summary", "action"}
        assert alert["labels"]["severity"] in ("cost", "warning", "critical")


def promtool(*arguments: str, folder: Path) -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed: it comes with Debian's package prometheus")
    done = subprocess.run(
        ["promtool", *arguments], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


@BY_SCHEDULER
def test_prometheus_takes_the_rules(scheduler: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(rules_text(CLUSTERS[scheduler]))
    promtool("check", "rules", "--lint-fatal", "rules.yml", folder=tmp_path)


def test_alerts_come_when_they_should(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(rules_text(CLUSTERS["slurm"]))
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": CASES}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(document))
    promtool("test", "rules", "tests.yml", folder=tmp_path)


def test_every_alert_has_been_seen_to_come() -> None:
    seen = {
        check["alertname"]
        for case in CASES
        for check in case["alert_rule_test"]
        if check["exp_alerts"]
    }
    assert seen == {
        rule["alert"] for scheduler in CLUSTERS for rule in rules(scheduler) if "alert" in rule
    }


TOPIC = "arn:aws:sns:us-east-1:123456789012:alerts"


def test_all_alerts_go_to_the_topic() -> None:
    definition = yaml.safe_load(alert_manager_definition(CLUSTERS["slurm"], TOPIC))
    config = yaml.safe_load(definition["alertmanager_config"])
    assert config == alert_manager_config(CLUSTERS["slurm"], TOPIC)
    (receiver,) = config["receivers"]
    (topic,) = receiver["sns_configs"]
    assert config["route"]["receiver"] == receiver["name"]
    assert (topic["topic_arn"], topic["sigv4"]) == (TOPIC, {"region": "us-east-1"})


def test_alertmanager_takes_its_configuration(tmp_path: Path) -> None:
    if not shutil.which("amtool"):
        pytest.skip(
            "amtool is not installed: it comes with Debian's package prometheus-alertmanager"
        )
    config = tmp_path / "alertmanager.yml"
    config.write_text(yaml.safe_dump(alert_manager_config(CLUSTERS["slurm"], TOPIC)))
    done = subprocess.run(
        ["amtool", "check-config", config], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
