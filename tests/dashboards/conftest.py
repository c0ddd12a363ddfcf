from tests.lifecycle.node import stand_ins

__all__ = ["stand_ins"]
