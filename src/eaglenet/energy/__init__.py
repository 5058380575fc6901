"""Energy-aware matching: energies, Langevin sampler, replay buffer, loss."""

from eaglenet.energy.captured_chain import ChainRunner
from eaglenet.energy.energies import ENERGIES, Energy
from eaglenet.energy.langevin import noise_deviation, sample
from eaglenet.energy.matching_loss import energy_matching_loss
from eaglenet.energy.replay_buffer import ReplayBuffer

__all__ = [
    "ENERGIES",
    "ChainRunner",
    "Energy",
    "ReplayBuffer",
    "energy_matching_loss",
    "noise_deviation",
    "sample",
]
