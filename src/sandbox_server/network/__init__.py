"""What boxes can reach: rules, and the proxy through which every connection of a box goes out."""
