"""One file per format that trajectories are written in."""
