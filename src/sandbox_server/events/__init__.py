"""What happens, told to callers who listen and to webhooks."""
