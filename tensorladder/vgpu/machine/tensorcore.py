"""tensorcore."""
