"""Speed, measured as ratios within one run. `run` is the command, `jobs` is what it measures."""
