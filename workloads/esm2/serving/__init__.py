"""A model behind SageMaker's inference contract: ``/ping`` and ``/invocations``."""
