"""The HTTP app. It knows the interface `Sandboxes` and nothing of what stands behind it."""
