"""Triton forms of the operations, for CUDA: one file per operation, the same names as one floor up."""
