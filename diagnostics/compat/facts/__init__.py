"""What a configuration is for: the device and the model, as people name them, and the mark of what nobody told.

Devices are found in a sheet by the names people write; a model's `config.json`, sheet or a few words become the facts
rules ask for. Nothing here knows an engine, a release or a rule.
"""
