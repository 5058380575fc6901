"""Ground floor: types, errors, files, settings, registries and the platform."""
