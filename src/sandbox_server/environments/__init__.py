"""Environments: what boxes have in them besides the image, made once and kept."""
