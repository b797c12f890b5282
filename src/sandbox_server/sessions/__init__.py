"""Sessions: which thread has which box, and how its earlier sessions ended."""
