"""What outlives sessions: their artifacts, and what is remembered of them."""
