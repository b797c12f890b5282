"""Sessions: which thread has which box, and what became of those it had before."""
