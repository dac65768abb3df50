"""Errors of the training loop and its checkpoints."""

from __future__ import annotations

from gnnjit.errors import GnnjitError


class TrainError(GnnjitError, ValueError):
    """A training run is misconfigured, or has diverged."""


class CheckpointError(GnnjitError, ValueError):
    """A checkpoint is missing, damaged, in the way, or of another run."""
