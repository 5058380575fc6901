"""EagleNet's scores, factorised: in plain PyTorch and as Triton kernels; both get registered."""

from eaglenet.scoring.eaglenet import scorers

__all__ = ["scorers"]
