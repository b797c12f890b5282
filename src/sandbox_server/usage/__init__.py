"""Usage: what tenants have used, by day, thread and session; what it costs, and what they may."""
