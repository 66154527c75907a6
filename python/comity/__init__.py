"""Collective communication for machine learning, on the computers people own."""

from . import _torch

_torch.watch()
