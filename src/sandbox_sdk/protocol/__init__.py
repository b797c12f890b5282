"""The wire contract, shared by server and clients. Depends on pydantic alone."""
