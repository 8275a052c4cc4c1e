"""Who may ask: keys, tenants, and the guard before every path."""
