"""Why a graph cannot be built."""

from __future__ import annotations

from edgekit.errors import EdgekitError


class NoGraphError(EdgekitError):
    """No graph is known for the architecture, or the file does not describe one."""


class ShapeError(NoGraphError):
    """Two tensors do not fit together: a file with such weights would not load."""


class MissingTensorError(NoGraphError):
    """The file does not have a weight that its architecture cannot do without."""
