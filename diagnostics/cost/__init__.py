"""The time of a step from a model's shapes and a device's measured efficiencies; measuring this machine."""
