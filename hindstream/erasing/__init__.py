"""`hindstream erase`: what is known of sessions is found, shown, and taken away."""
