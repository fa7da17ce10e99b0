"""What reads a configuration, a log, a metric or a trace, and says what is wrong and which knob to turn."""
