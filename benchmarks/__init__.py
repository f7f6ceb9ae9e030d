"""Speed, measured as ratios within one run: `python -m benchmarks.run`, and `benchmarks.compare` for two runs."""
