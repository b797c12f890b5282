"""Previews: what listens in a box, for browsers, at origins and on a port of their own."""
