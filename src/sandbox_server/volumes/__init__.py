"""Volumes: named folders of a tenant that outlive sessions."""
