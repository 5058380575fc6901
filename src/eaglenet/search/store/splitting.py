"""Moved to :mod:`eaglenet.core.splitting`."""

from eaglenet.core.splitting import Splitting as Splitting
