"""`python -m sandbox_server` starts the service."""

from sandbox_server.main import main

main()
