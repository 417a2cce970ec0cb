"""async_copy."""
