"""Side by side, in one run on one machine: our boxes, the bare host and Docker's own ways."""
