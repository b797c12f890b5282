"""Bash source into a tree, as far as a policy has to know it. Pure."""
