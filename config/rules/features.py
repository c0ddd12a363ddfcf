"""Rules for optional parts of a cluster file that CloudFormation cannot create in some regions."""

from config.facts.optional_features import OPTIONAL_FEATURES, OptionalFeature
from config.rules.rule import CommonRule, is_outside


def _rule(feature: OptionalFeature) -> CommonRule:
    regions = ", ".join(sorted(feature.regions))
    return CommonRule(
        feature.path,
        lambda cluster: feature.is_used(cluster) and is_outside(cluster, feature.regions),
        f"CloudFormation has {feature.resource_type} ({feature.title}) only in {regions}",
        feature.instead,
        got=feature.got,
    )


RULES = tuple(_rule(feature) for feature in OPTIONAL_FEATURES)
