"""barriers."""
