"""Whether a tier is whole: every fault that its objects show, and a statement of what it serves."""
