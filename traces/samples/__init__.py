"""Two bundled families of synthetic, labelled trajectories, made by `generate`."""
