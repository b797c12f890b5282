"""The `sandbox` command."""
