"""CUDA graphs, Triton kernels and graph rewriting for batched clients on a GPU."""
