"""Records that somebody looks for, and a certificate of what was searched for them."""
