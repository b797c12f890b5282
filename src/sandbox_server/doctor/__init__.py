"""What a machine has of what a server needs, and how well its boxes are confined."""
