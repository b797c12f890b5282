"""The audit log: who did what, in lines that hold each other by their hashes."""
