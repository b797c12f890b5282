"""Folders of the caller's machine in a sandbox: copied there, compared, and brought back.

A copy has an id. The sandbox has it as the name of a file in its home folder, so that checkpoints
and forks have it too, and this machine as the name of the record of what was copied (its base). A
sandbox can name only what it was given: ids are random, and a record is never made from one.
"""
