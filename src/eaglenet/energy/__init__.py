"""Energy-aware matching (EAM): energies, sampler, replay buffer, loss."""
