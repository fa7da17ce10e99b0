"""What a configuration is for: the model, as people name it, and the mark of what nobody told.

A model's `config.json`, sheet or a few words become the facts rules ask for. Nothing here knows an engine, a release or
a rule. The device is found by the name people write in `cost.devices`.
"""
