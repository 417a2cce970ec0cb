"""tensor_copy."""
