"""`Reach` under the name that earlier documentation gave."""

from edgekit.sources.types import Reach

__all__ = ["Reach"]
