"""Energy-aware matching: energies, Langevin sampler, replay buffer, loss."""
