"""The warden: our process inside every box, its PID 1.

It runs commands, keeps their output and results, moves files and ends the box when its owner has
been silent for too long. Standard library only, Python 3.8 or newer, shipped as a single zipapp:
it has to run in any image that has bash and python3. The server treats every frame it sends as
hostile input. docs/warden-protocol.md describes the wire.
"""
