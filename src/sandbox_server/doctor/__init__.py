"""Checks of a machine: whether it has what a server needs, and how well its boxes are confined."""
