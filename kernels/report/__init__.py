"""What every GPU kernel becomes: machine code for four architectures, read back, and its floor on paper.

`python -m camshaft.kernels.report --write` compiles ahead of time (no GPU is needed) and writes `REPORT.md`
and `report.json` beside the kernels.
"""
