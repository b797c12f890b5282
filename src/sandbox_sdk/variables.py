"""The variables that clients read: programs that use the SDK, and the command line."""

VARIABLES = {
    "SANDBOX_URL": "The server; without it, sandboxes are made by the program itself.",
    "SANDBOX_API_KEY": "The key for that server.",
    "SANDBOX_THREAD": "The thread of `sandbox mcp`; without it, one that ends with the program.",
}
