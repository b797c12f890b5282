"""What a server measures of itself, and how it tells."""
