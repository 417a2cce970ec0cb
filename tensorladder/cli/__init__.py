"""The command line: one file a verb. Every verb calls library functions; nothing here computes."""
