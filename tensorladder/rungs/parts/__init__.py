"""Device code that several rungs share."""
