"""A bash parser, as far as the policy needs one. Pure."""
