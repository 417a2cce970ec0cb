"""atomic."""
