"""Who may do what: keys, their tenants and scopes."""
