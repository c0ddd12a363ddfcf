"""Check of a model's answers: after a diverged training, they are infinite or not numbers."""

import numpy as np
import numpy.typing as npt


class NotFiniteError(ValueError):
    """An answer or a score of a model is infinite or not a number."""

    def __init__(self) -> None:
        super().__init__(
            "the model's answers are not finite, as after a diverged training or with a wrong value in its "
            "config.json; give another checkpoint of its training, or another model"
        )


def check_finite(numbers: npt.ArrayLike) -> None:
    """Check answers or scores of a model, which no command may write as results.

    Raises:
        NotFiniteError: if a number is infinite or NaN.
    """
    if not np.isfinite(numbers).all():
        raise NotFiniteError
