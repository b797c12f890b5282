"""Runtimes make boxes: isolated environments, each with a warden inside that runs the commands."""
