"""Collective communication for machine learning, on the computers people own."""
