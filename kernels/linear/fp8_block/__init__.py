"""FP8 product with a scale for every 128 columns of an input row and every 128 x 128 block of the weight.

The recipe is DeepSeek-V3's (arXiv 2412.19437, section 3.3): partial sums over 128 columns are scaled in
float32.
"""

BLOCK = 128
