"""Product of FP8 rows with an FP8 weight, by kernels of our own.

Scales are one an input row and one an output channel; or one a group of 128 columns of an input row and one a
block of 128 x 128 of the weight, partial sums over 128 columns being scaled in float32 (DeepSeek-V3's recipe,
arXiv 2412.19437, section 3.3).
"""
