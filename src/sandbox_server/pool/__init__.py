"""Boxes that are started before they are needed."""
