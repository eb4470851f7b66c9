"""Where the cells of a run, and simulations, are computed: in this process, or by the workers of a Ray cluster."""
