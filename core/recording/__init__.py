"""What a server did, written down so that it can be played again: arrivals, lengths, prefix hashes, step plans.

Never content: a block of tokens stands as a number, hashed with a key that is thrown away. Each line is a
JSON object. `request` lines (one a finished request) are a workload that bench and simulate read, together
with `blocks` lines: each names blocks that no earlier line of its request has. The others let `replay` drive
a scheduler through the same calls and compare its plans. A file that was cut short, by a killed server, is
good up to there.
"""
