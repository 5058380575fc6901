"""Shared foundations: types, errors, files, settings, registries, processes and the platform."""

from eaglenet.core.platform import enable_mps_fallback

enable_mps_fallback()  # Before anything imports torch.
