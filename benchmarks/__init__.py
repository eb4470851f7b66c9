"""One file per question, run by `kvmill bench NAME`; figures in `results/`."""
