"""Entry points: flags in, library calls, files out."""
