"""misc."""
