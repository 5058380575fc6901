"""EagleNet's scores, factorised: in plain PyTorch and as Triton kernels."""
