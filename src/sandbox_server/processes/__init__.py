"""Several processes on one machine that are one server: `sandbox serve --processes N`."""
